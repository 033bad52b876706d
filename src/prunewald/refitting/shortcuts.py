"""Parts of a block that are refitted already return what they have returned, and compute nothing anew."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch import nn

from prunewald.refitting.chains import replaced
from prunewald.refitting.feed import Part, first_of
from prunewald.refitting.order import Step, Trace

_FEWEST = 2  # so many steps in a part are worth keeping what it returns


class Shortcuts:
    """Follows which children of a block are done, and keeps what they return for each of the parts of a feed."""

    def __init__(self, trace: Trace, steps: Iterable[Step], children: Mapping[str, nn.Module]) -> None:
        where: dict[Hashable, set[str | None]] = {}
        for seen in trace.events:
            where.setdefault(seen.key, set()).add(seen.child)
        inside = Counter(seen.child for seen in trace.events)
        alone = {name for places in where.values() if len(places) > 1 for name in places}
        self._left = {
            name: {key for key, places in where.items() if name in places}
            for name in children
            if inside[name] >= _FEWEST and trace.children[name] == [True] and name not in alone
        }
        self.children = children
        self.due: set[str] = set()  # those that are done, and whose returns are to be kept in the next pass
        self.kept: set[str] = set()

    def passed(self, step: Step) -> set[str]:
        """The layers of a step are done, after a pass for it: the children that do not compute from now on."""
        self.kept |= self.due
        self.due = set()
        for name, keys in self._left.items():
            if keys:
                keys -= set(step.keys)
                if not keys:
                    self.due.add(name)
        return self.kept


class Short:
    """Examples as a block is given them, with what its finished children returned for them in the pruned model."""

    def __init__(self, part: Part, cuts: Shortcuts) -> None:
        self.part, self.held, self.keep, self._cuts = part, part.held, part.keep, cuts
        self._found: dict[str, Any] = {}

    def call(self, module: nn.Module, *, dense: bool) -> Any:
        """What the block returns."""
        if dense:
            return self.part.call(module, dense=True)
        with ExitStack() as stack:
            for name in self._cuts.kept:
                if name in self._found:
                    stack.enter_context(_returning(self._cuts.children[name], self._found[name]))
            for name in self._cuts.due:
                stack.callback(self._cuts.children[name].register_forward_hook(self._keeping(name)).remove)
            return self.part.call(module, dense=False)

    def _keeping(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, found: Any) -> None:
            self._found[name] = _copied(found)

        return keep


def _copied(found: Any) -> Any:
    first = first_of(found).clone()
    return (first, *found[1:]) if isinstance(found, tuple) else first


def _returning(module: nn.Module, found: Any) -> AbstractContextManager[None]:
    """A module that returns a copy of this, since what follows may write into it."""
    return replaced([module], lambda _: lambda *args, **kwargs: _copied(found))
