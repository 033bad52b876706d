"""Many weights as counts over the logarithms of |w| and sigma."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prunewald.util.tensors import pieces
from prunewald.web import encoding

_TAIL = 0.0005  # the share of weights at either end that is counted in the outermost bins
_SAMPLE = 1 << 18  # values that tell where the ends are
_ACROSS, _UP = 288, 128  # bins of |w| and of sigma, in pages of few planes
_ALL_CELLS = 1_500_000  # of all planes of a page


class Cells(NamedTuple):
    """Into how many bins |w| and sigma are divided."""

    weight: int
    sigma: int


def cells_for(planes: int) -> Cells:
    """As many as a page of so many planes has room for."""
    share = min(1.0, math.sqrt(_ALL_CELLS / (_ACROSS * _UP * max(planes, 1))))
    return Cells(max(40, int(_ACROSS * share)), max(20, int(_UP * share)))


def binned(weight: Tensor, sigma: Tensor, dead: Tensor | None, alive: Tensor, cells: Cells) -> dict[str, Any]:
    """Counts of the living weights: in the plane, and along |w| of those that have no place in it.

    `dead` are those that go first, by |w|; "unknown" have an infinite sigma, "certain" a sigma of zero.
    """
    size, spread = weight.abs(), sigma
    dead = torch.zeros_like(alive) if dead is None else dead
    moving = alive & (weight != 0)
    regular = moving & ~dead & spread.isfinite() & (spread > 0)
    across, up = _edges(size, moving, cells.weight, to_the_top=True), _edges(spread, regular, cells.sigma)
    kinds = {
        "dead": moving & dead,
        "unknown": moving & ~dead & ~spread.isfinite(),
        "certain": moving & ~dead & (spread == 0),
    }
    lines = {name: encoding.counts(_line(size[mask], across)) for name, mask in kinds.items() if bool(mask.any())}
    return {
        "zeros": int(torch.count_nonzero(alive & (weight == 0))),
        "weight": list(across),
        "sigma": list(up),
        "counts": encoding.counts(_grid(size, spread, regular, across, up)),
        **lines,
    }


class _Edges(NamedTuple):
    """The logarithms (to base 10) of the lowest and the highest edge, and how many bins are between them."""

    low: float
    high: float
    bins: int


def _edges(values: Tensor, chosen: Tensor, bins: int, *, to_the_top: bool = False) -> _Edges:
    """Edges between which all but the tails are; `to_the_top` up to the largest."""
    found = values[chosen]
    if not found.numel():
        return _Edges(-1.0, 0.0, 1)
    some = found[:: -(-found.numel() // _SAMPLE)].double().sort().values
    tail = int(_TAIL * len(some))
    ends = some[tail], found.max() if to_the_top else some[len(some) - 1 - tail]
    low, high = (math.log10(float(value)) for value in ends)
    return _Edges(low, high, bins) if high > low else _Edges(low - 0.05, high + 0.05, 1)


def _place(values: Tensor, edges: _Edges) -> Tensor:
    scale = edges.bins / (edges.high - edges.low)
    return ((values.double().log10() - edges.low) * scale).long().clamp_(0, edges.bins - 1)


def _line(values: Tensor, edges: _Edges) -> Tensor:
    return torch.bincount(_place(values, edges), minlength=edges.bins)


def _grid(weight: Tensor, sigma: Tensor, chosen: Tensor, across: _Edges, up: _Edges) -> Tensor:
    """Counts by bins of |w|, and within each by bins of sigma; piece by piece, since a layer may be large."""
    found = torch.zeros(across.bins * up.bins, dtype=torch.int64, device=weight.device)
    for size, error, here in zip(pieces(weight), pieces(sigma), pieces(chosen), strict=True):
        place = _place(size[here], across) * up.bins + _place(error[here], up)
        found += torch.bincount(place, minlength=len(found))
    return found
