"""The examples of a refit: read several times in one order, whole examples of each batch held back."""

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.calibration import Batch, Calibration, counted_positions, device_of
from prunewald.util.arguments import real

_DECODER = "decoder_input_ids"  # what models with this argument make of the labels where it is not given
_ONCE = (
    "data={}: that can be read only once, and a refit reads it several times: give a list of batches, or a DataLoader"
)
_OTHER = (
    "data, a {}, gave other examples in a later pass: a refit reads them several times, and has to find the same ones; "
    "give it without shuffling and random changes, or as list(data)"
)
_FEW = (
    "data, a {}, has {:,} examples, of which held_back={:g} leaves {:,} to fit to and {:,} to choose by: "
    "give at least two examples, a few hundred where there are so many, or another share"
)


@dataclass(frozen=True)
class Some:
    """Some examples as the model takes them, all of them held back or none; `keep` are the positions that count."""

    batch: Batch
    held: bool
    keep: Tensor | None
    size: int

    def call(self, module: nn.Module, *, dense: bool) -> Any:
        """What the model returns for them; labels it is given only where it makes inputs of them."""
        return self.batch.call(module, labels=_DECODER in inspect.signature(module.forward).parameters)


class Examples:
    """The examples of a source, read again from it in the same order at every pass."""

    def __init__(self, data: Iterable[Any], model: nn.Module, held_back: float, limit: int | None) -> None:
        if not isinstance(data, Iterable):
            raise TypeError(f"data={repr(data)[:200]}: give a list of batches, or a DataLoader")
        self._share = real("held_back", held_back, above=0, below=1, what="a share of the examples")
        self._seed, self._kind = torch.initial_seed() % (1 << 63), type(data).__name__
        self._devices = [device] if (device := device_of(model)).type == "cuda" else []
        if isinstance(data, Iterator):
            raise TypeError(_ONCE.format(repr(data)[:200]))
        self._source = Calibration(data, model, limit=limit)
        self._generators = [(one, one.get_state()) for one in _generators(data)]
        self._prints: list[float] | None = None
        self.count = {False: 0, True: 0}

    def __iter__(self) -> Iterator[Some]:
        prints: list[float] = []
        count = {False: 0, True: 0}
        with _seeded(self._seed, self._devices, self._generators):
            for batch in self._source:
                prints.append(_print(batch))
                if self._prints is not None and self._prints[: len(prints)] != prints:
                    raise ValueError(_OTHER.format(self._kind))
                for part in self._split(batch, sum(count.values())):
                    count[part.held] += part.size
                    yield part
        if self._prints is not None and len(prints) != len(self._prints):
            raise ValueError(_OTHER.format(self._kind))
        self._prints, self.count = prints, count

    def check(self) -> None:
        """Refuse what is too little, once it was read."""
        fitted, held = self.count[False], self.count[True]
        if not (fitted and held):
            raise ValueError(_FEW.format(self._kind, fitted + held, self._share, fitted, held))

    def _split(self, batch: Batch, before: int) -> Iterator[Some]:
        """A batch in two: the examples that are fitted to, and those that are held back, evenly spread."""
        size, share = batch.size, self._share
        ends = [math.floor((before + at) * share + 0.5) for at in range(size + 1)]
        chosen = torch.tensor([b > a for a, b in pairwise(ends)])
        keep = counted_positions(batch)
        for held in (False, True):
            at = (chosen == held).nonzero()[:, 0]
            if len(at):
                whole = len(at) == size
                part = batch if whole else _taken(batch, at, size)
                own = None if keep is None else keep if whole else keep[at.to(keep.device)]
                yield Some(part, held, own, len(at))


def _taken(batch: Batch, at: Tensor, size: int) -> Batch:
    """Some examples of a batch."""

    def pick(tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return tree[at.to(tree.device)] if tree.dim() and len(tree) == size else tree
        if isinstance(tree, dict):
            return {key: pick(value) for key, value in tree.items()}
        return type(tree)(map(pick, tree)) if type(tree) in (list, tuple) else tree

    return replace(batch, args=pick(batch.args), kwargs=pick(dict(batch.kwargs)), targets=pick(batch.targets))


def _print(tree: Any) -> float:
    """A number that other examples, or another order of them, would hardly have."""
    if isinstance(tree, Batch):
        return _print((tree.args, tree.kwargs))
    if isinstance(tree, Tensor):
        flat = tree.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // 4096)].double().nan_to_num()
        return float(some @ torch.arange(1.0, len(some) + 1, dtype=some.dtype, device=some.device).sqrt())
    inside = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return sum(map(_print, inside))


def _generators(data: Any) -> list[torch.Generator]:
    """Those of its own that a DataLoader draws its order from."""
    parts = (data, *(getattr(data, name, None) for name in ("sampler", "batch_sampler")))
    parts = (*parts, getattr(parts[-1], "sampler", None))
    found = [getattr(part, "generator", None) for part in parts]
    return list(dict.fromkeys(one for one in found if isinstance(one, torch.Generator)))


@contextmanager
def _seeded(
    seed: int, devices: list[torch.device], generators: Sequence[tuple[torch.Generator, Tensor]]
) -> Iterator[None]:
    """The same random numbers at every pass, so that a loader that shuffles by them gives the same order."""
    before = [one.get_state() for one, _ in generators]
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for one, state in generators:
            one.set_state(state)
        try:
            yield
        finally:
            for (one, _), state in zip(generators, before, strict=True):
                one.set_state(state)
