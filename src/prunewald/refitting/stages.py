"""The stages of a walk: a model as a whole, and where blocks stand in a row, one block after the other by itself.

Each block is run alone on what it was given in a pass of the whole, which is kept, in the pruned model and in the dense
one; so a model of many layers takes a few passes in all, and not two for each layer.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.calibration import device_of
from prunewald.pruning.refitted import LayerRefit
from prunewald.refitting.chains import Chain, candidates, caught, replaced
from prunewald.refitting.feed import Call, Given, Part, keepable
from prunewald.refitting.gathering import Aim
from prunewald.refitting.order import Step, Trace, key_of
from prunewald.refitting.originals import Originals
from prunewald.refitting.passes import Passes
from prunewald.refitting.seeing import Event
from prunewald.refitting.shortcuts import Short, Shortcuts
from prunewald.refitting.walking import Walk
from prunewald.util.memory import give_back

_FEWEST = 3  # so many steps are worth keeping what blocks are given
_ALIKE = 1e-3  # by what share outputs may differ that are the same but for rounding


@dataclass
class Stage:
    """A model, or a block of one: its passes, what happened in the first, and what it is given."""

    passes: Passes
    trace: Trace
    chains: list[Chain]
    feed: Iterable[Given]
    children: Mapping[str, nn.Module] = field(default_factory=dict)  # of a block, by name
    silent: set[str] = field(default_factory=set)  # blocks that are not computed any more
    asked: bool = False  # whether the dense block has computed, and its returns have gone on to the next


class Stages:
    """Goes through a model stage by stage; `names` are those of its tensors by their ids."""

    def __init__(
        self, walk: Walk, names: Mapping[int, str], dense: Originals, targets: Collection[str], without: Collection[str]
    ) -> None:
        self._walk, self._names, self._dense = walk, dict(names), dense
        self._targets, self._without = targets, without

    def go(self, stage: Stage) -> list[LayerRefit]:
        """Refit the layers of a stage, in order."""
        rows: list[LayerRefit] = []
        done: set[str] = set()
        steps = stage.trace.steps(self._without)
        usable = [chain for chain in stage.chains if _usable(chain, stage.trace, steps)]
        aims, cuts = None, None
        if isinstance(stage.feed, list) and not usable:
            aims, cuts = self._asked(stage, stage.feed, steps), Shortcuts(stage.trace, steps, stage.children)
            stage.feed = [Short(part, cuts) for part in stage.feed]
        for step in steps:
            if step.block in done:
                continue
            chain = next((one for one in usable if step.block in one.blocks), None)
            if chain is not None:
                rows += self._along(stage, chain, {step.block for step in steps})
                done |= chain.blocks.keys()
            else:
                gathering = self._walk.gathering(step, stage.passes, stage.trace.order(stage.silent))
                rows += self._walk.take(gathering, stage.feed, None if aims is None else aims.pop(step))
                stage.silent |= set() if cuts is None else cuts.passed(step)
        return rows

    def _asked(self, stage: Stage, parts: Iterable[Part], steps: Sequence[Step]) -> dict[Step, deque[Aim]]:
        """What the dense block says of all its layers, in one pass, whose end is what the next block is given.

        Neither what the dense block was given nor its weights are needed then.
        """
        order = stage.trace.order()
        found: dict[Step, deque[Aim]] = {step: deque() for step in steps}
        whole = [self._walk.gathering(step, stage.passes, order) for step in steps]
        for part in parts:
            takes: dict[Hashable, Aim] = {}
            for gathering in whole:
                aim = gathering.aim(part)
                found[gathering.step].append(aim)
                takes |= dict.fromkeys(() if gathering.step.routed else gathering.step.keys, aim)
            part.went_on(stage.passes.see_all(part, order, _Sorting(takes)), dense=True)
        stage.asked = True
        stage.passes.let_go()
        return found

    def _along(self, stage: Stage, chain: Chain, with_steps: Collection[str | None]) -> list[LayerRefit]:
        """Refit the blocks of a chain, one after the other; what follows them is then given what they returned."""
        rows: list[LayerRefit] = []
        blocks = list(chain.blocks.values())
        parts = [_part(stage.passes, given, blocks[0]) for given in stage.feed]
        found: Any = None
        for name, block in chain.blocks.items():
            passes, chains = Passes(block, self._names, self._dense, self._targets), candidates(block, name)
            children = {f"{name}.{leaf}": child for leaf, child in block.named_children()}
            inner = Stage(passes, Trace(), chains, parts, children)
            if name in with_steps:
                inner.trace, _, _ = passes.trace(parts[0], chains, children)
                rows += self.go(inner)
            for part, given in zip(parts, inner.feed, strict=True):
                if not inner.asked:
                    part.went_on(passes.run(part, dense=True), dense=True)
                part.went_on(found := passes.run(given, dense=False), dense=False)
            give_back()
        rest = found[1:] if isinstance(found, tuple) else None
        if keepable(found):
            feed = Resuming(stage.feed, parts, blocks, rest)
            if _same(stage.passes, feed):
                stage.feed = feed
                stage.silent |= chain.blocks.keys()
        return rows


class _Sorting:
    """Gives each event to what it is for."""

    def __init__(self, takes: Mapping[Hashable, Aim]) -> None:
        self._takes = takes

    def __call__(self, event: Event) -> None:
        if (take := self._takes.get(key_of(event))) is not None:
            take(event)


def _usable(chain: Chain, trace: Trace, steps: Sequence[Step]) -> bool:
    """Whether the blocks of a chain can run alone, and it is worth it."""
    inside = sum(step.block in chain.blocks for step in steps)
    return inside >= _FEWEST and chain.complete and trace.apart(chain.blocks)


def _part(passes: Passes, given: Given, block: nn.Module) -> Part:
    """What a block is given, in the pruned model and in the dense one."""
    calls: list[Call] = []
    for dense in (False, True):
        with caught(block, calls.append):
            passes.run(given, dense=dense)
    own, other = calls
    rest = [_shared(b, a) for a, b in zip(own.rest, other.rest, strict=True)]  # mostly masks and positions
    other = other.of(other.first.to("cpu"), rest)
    return Part(given.held, given.keep, own.having(own.first.to("cpu")), other, device_of(passes.module))


def _shared(one: Any, other: Any) -> Any:
    """One of two arguments: the other in its place where they are equal, to be kept once."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(map(_shared, one, other))
    same = isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
    return other if same and torch.equal(one, other) else one


class Resuming:
    """What a model is given, with a row of blocks that return what they have returned, and compute nothing."""

    def __init__(
        self, feed: Iterable[Given], parts: Sequence[Part], blocks: list[nn.Module], rest: tuple[Any, ...] | None
    ) -> None:
        self.feed, self._parts, self._blocks, self._rest = feed, parts, blocks, rest

    def __iter__(self) -> Iterator[Given]:
        for given, part in zip(self.feed, self._parts, strict=True):
            yield _Resumed(given, part, self._blocks, self._rest)


class _Resumed:
    def __init__(self, given: Given, part: Part, blocks: list[nn.Module], rest: tuple[Any, ...] | None) -> None:
        self.given, self.held, self.keep = given, given.held, given.keep
        self._part, self._blocks, self._rest = part, blocks, rest

    def call(self, module: nn.Module, *, dense: bool) -> Any:
        """What the module returns."""
        found = self._part.first(dense=dense)
        returned = found if self._rest is None else (found, *self._rest)
        with replaced(self._blocks, lambda _: lambda *args, **kwargs: returned):
            return self.given.call(module, dense=dense)


def _same(passes: Passes, feed: Resuming) -> bool:
    """Whether a model returns the same with its blocks as without: something else may look at what is inside them."""
    resumed = next(iter(feed))
    assert isinstance(resumed, _Resumed)
    one, other = (_tensors(passes.run(given, dense=False)) for given in (resumed.given, resumed))
    if not one or [t.shape for t in one] != [t.shape for t in other]:
        return False
    pairs = [(a.double(), b.double()) for a, b in zip(one, other, strict=True)]
    return all(float((a - b).norm()) <= _ALIKE * float(a.norm()) for a, b in pairs)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    inside = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for one in inside for tensor in _tensors(one)]
