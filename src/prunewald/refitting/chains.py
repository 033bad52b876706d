"""Parts of a model that stand in a row, each given what the one before has returned: blocks, which can run alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from prunewald.refitting.feed import SIMPLE, Call, first_of, keepable
from prunewald.refitting.order import Enough


@dataclass
class Chain:
    """Modules in a row, by name, and what was seen of them in a first pass."""

    blocks: dict[str, nn.Module]
    whole: bool = True  # whether each was given what the one before has returned, and nothing else of its own
    _next: int = 0
    _last: Any = None
    _rest: list[Any] = field(default_factory=list)

    def entered(self, at: int, call: Call) -> None:
        """A block is called."""
        if at == 0:
            self._rest = call.rest
        known = len(call.rest) == len(self._rest) and all(map(_alike, call.rest, self._rest))
        follows = at == 0 or call.first is self._last
        self.whole = self.whole and at == self._next and known and follows and isinstance(call.first, Tensor)
        self._next = at + 1

    def left(self, found: Any) -> None:
        """A block has returned."""
        self._last = first_of(found)

    @property
    def complete(self) -> bool:
        """Whether its blocks can run alone, one after the other."""
        return self.whole and self._next == len(self.blocks)

    def done(self) -> None:
        """Let go of what was seen."""
        self._last, self._rest = None, []


def _alike(one: Any, other: Any) -> bool:
    """Whether two arguments are the same: the same tensor, equal numbers, or tuples of such."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one is other if isinstance(one, Tensor) else isinstance(one, SIMPLE) and one == other


def candidates(module: nn.Module, name: str) -> list[Chain]:
    """The outermost lists of modules in a module, by the full names of these."""
    children = {f"{name}.{leaf}".lstrip("."): child for leaf, child in module.named_children()}
    if isinstance(module, nn.Sequential | nn.ModuleList) and len(children) > 1:
        return [Chain(children)]
    return [chain for path, child in children.items() for chain in candidates(child, path)]


@contextmanager
def watched(chains: list[Chain], enter: Callable[[str | None], None]) -> Iterator[None]:
    """While a with block runs, chains see the calls of their blocks; `enter` is told which block a pass is in."""
    with ExitStack() as stack:
        for chain in chains:
            for at, (name, block) in enumerate(chain.blocks.items()):
                before, after = _hooks(chain, at, name, enter)
                for handle in (
                    block.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
                    block.register_forward_hook(after),
                ):
                    stack.callback(handle.remove)
        yield
        for chain in chains:
            chain.done()


def _hooks(chain: Chain, at: int, name: str, enter: Callable[[str | None], None]) -> tuple[Any, Any]:
    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        chain.entered(at, Call(args, kwargs))
        enter(name)

    def after(module: nn.Module, args: Any, found: Any) -> None:
        chain.left(found)
        enter(None)

    return before, after


@contextmanager
def entered(
    children: Mapping[str, nn.Module], enter: Callable[[str], None], leave: Callable[[str, bool], None]
) -> Iterator[None]:
    """While a with block runs, it is told when a child is called and has returned, and if that can be kept."""
    with ExitStack() as stack:
        for name, child in children.items():
            stack.callback(child.register_forward_pre_hook(lambda *_, name=name: enter(name)).remove)
            after = child.register_forward_hook(lambda _, __, found, name=name: leave(name, keepable(found)))
            stack.callback(after.remove)
        yield


@contextmanager
def caught(block: nn.Module, take: Callable[[Call], None]) -> Iterator[None]:
    """While a with block runs, `take` is given the arguments of a call of the block, which ends the pass."""

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        take(Call(args, kwargs))
        raise Enough

    handle = block.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    try:
        yield
    except Enough:
        pass
    finally:
        handle.remove()


@contextmanager
def replaced(blocks: Iterable[nn.Module], forward: Callable[[nn.Module], Callable[..., Any]]) -> Iterator[None]:
    """While a with block runs, these modules compute something else: what `forward` gives for each."""
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(_put_back, block, vars(block).get("forward"))
            block.forward = forward(block)
        yield


def _put_back(block: nn.Module, forward: Any) -> None:
    if forward is None:
        del block.forward
    else:
        block.forward = forward
