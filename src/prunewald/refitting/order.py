"""In which order a model computes its layers: found by running one batch, and held to by all others."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from prunewald.refitting.seeing import Event, Normalised, Product
from prunewald.refitting.units import Unit

_CHANGED = (
    "the order in which the model computes its layers changes between batches: {} came where in the first batch {} "
    "did; refit needs a model that does the same for each, so give batches that take one way through it"
)


class Enough(Exception):
    """All that was to be seen of a forward pass was seen."""


def routed(unit: Unit) -> bool:
    """Whether it depends on the data which examples come by a weight, as with experts."""
    return unit.span.single or "expert" in unit.span.param.lower()


def key_of(event: Event) -> Hashable:
    """What is one layer for the order: a unit, a BatchNorm by its name, or all experts of one kind."""
    if isinstance(event, Normalised):
        return event.name
    return pattern_of(event.unit.span.param) if routed(event.unit) else event.unit


def pattern_of(name: str) -> Hashable:
    """All experts of one kind, by the name of one of them."""
    return "experts", re.sub(r"(experts?)\.\d+\.", r"\1.*.", name)


def shown(key: Hashable) -> str:
    """A key in words."""
    return repr(key.name) if isinstance(key, Unit) else repr(key[1]) if isinstance(key, tuple) else repr(key)


@dataclass(frozen=True)
class Step:
    """Layers that are looked at in one pass, since none of them has a part in the inputs of another."""

    keys: tuple[Hashable, ...]
    calls: int  # how many calls of theirs there are in a pass
    block: str | None = None  # where in the model that is
    routed: bool = False  # calls may be fewer, or more


class Seen(NamedTuple):
    """A layer in a pass: whether its input was that of the one before, in which block it was, and in which child."""

    key: Hashable
    same: bool
    block: str | None
    child: str | None


@dataclass
class Trace:
    """What happened in a first pass: the layers in order, and which of them in a row met the same input."""

    events: list[Seen] = field(default_factory=list)
    units: dict[Unit, None] = field(default_factory=dict)
    children: dict[str, list[bool]] = field(default_factory=dict)  # of each call, whether its return can be kept
    block: str | None = None  # where the pass is
    child: str | None = None
    _last: Tensor | None = None

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        same = self._last is not None and isinstance(event, Product) and _same(event.x, self._last)
        self._last = event.x if isinstance(event, Product) else None
        self.events.append(Seen(key_of(event), same, self.block, self.child))
        if isinstance(event, Product):
            self.units.setdefault(event.unit)

    def enter(self, block: str | None) -> None:
        """The pass goes into a block, or out of one."""
        self.block = block

    def enter_child(self, child: str) -> None:
        """The pass goes into a child of what runs."""
        self.child = child

    def leave_child(self, child: str, kept: bool) -> None:
        """The pass comes out of a child, with something that can be returned again or not."""
        self.children.setdefault(child, []).append(kept)
        self.child = None

    def order(self, done: Collection[str] = ()) -> list[Hashable]:
        """The layers as each batch has to come by them, without those in blocks and children that are `done`.

        Experts are not among them.
        """
        left = (seen for seen in self.events if seen.block not in done and seen.child not in done)
        return [seen.key for seen in left if not isinstance(seen.key, tuple)]

    def steps(self, without: Collection[str] = ()) -> list[Step]:
        """The layers in the order of their first calls, those together that are next to each other on one input.

        `without` are parameters that are left as they are.
        """
        calls = Counter(seen.key for seen in self.events)
        steps: list[list[Seen]] = []
        placed: set[Hashable] = set()
        begun = False
        for seen in self.events:
            key = seen.key
            if key in placed or (isinstance(key, Unit) and key.span.param in without):
                begun = begun and seen.same
                continue
            if seen.same and begun and calls[key] == 1 and not isinstance(key, tuple):
                steps[-1].append(seen)
            else:
                steps.append([seen])
            placed.add(key)
            begun = isinstance(key, Unit) and calls[key] == 1
        return [_step(together, calls) for together in steps]

    def apart(self, blocks: Collection[str]) -> bool:
        """Whether these blocks come in a row, with nothing between, and share no layer with each other or the rest."""
        at = [place for place, seen in enumerate(self.events) if seen.block in blocks]
        where: dict[Hashable, set[str | None]] = {}
        for seen in self.events:
            where.setdefault(seen.key, set()).add(seen.block)
        inside = (where[self.events[place].key] for place in at)
        return bool(at) and at[-1] - at[0] + 1 == len(at) and all(len(places) == 1 for places in inside)

    def done(self) -> None:
        """Let go of the last input."""
        self._last = None


def _step(together: Sequence[Seen], calls: Mapping[Hashable, int]) -> Step:
    keys = tuple(seen.key for seen in together)
    return Step(keys, sum(calls[key] for key in keys), together[0].block, isinstance(keys[0], tuple))


def _same(x: Tensor, other: Tensor) -> bool:
    return x is other or (
        x.data_ptr() == other.data_ptr()
        and x.shape == other.shape
        and x.stride() == other.stride()
        and x._version == other._version
    )


class Following:
    """Takes the events of a pass, in the order of the first one, and gives those of a step, or all, to `take`.

    It ends the pass when there can be no more of a step.
    """

    def __init__(self, order: Sequence[Hashable], step: Step | None, take: Callable[[Event], None]) -> None:
        self._order, self._step, self._take = order, step, take
        self._at = self._seen = 0

    def __call__(self, event: Event) -> None:
        """Look at an event."""
        key = key_of(event)
        if not isinstance(key, tuple):
            if self._at >= len(self._order) or self._order[self._at] != key:
                raise ValueError(_CHANGED.format(shown(key), self._expected()))
            self._at += 1
        if self._step is None:
            self._take(event)
        elif key in self._step.keys:
            self._take(event)
            self._seen += 1
            if self._seen == self._step.calls and not self._step.routed:
                raise Enough

    def check(self) -> None:
        """The pass came to its own end: refuse one without all that there was in the first."""
        short = self._at < len(self._order) if self._step is None else self._seen < self._step.calls
        if short and not (self._step is not None and self._step.routed):
            raise ValueError(_CHANGED.format("nothing", self._expected()))

    def _expected(self) -> str:
        return shown(self._order[self._at]) if self._at < len(self._order) else "nothing"
