"""LAMP's order over all tensors, and how many weights of each it prunes; no large tensor is sorted.

The LAMP score of a value is its square over the sum of the squares of all values of its tensor that are not smaller
(Lee et al. 2021). Within a tensor it rises with the value, so the first of the common order are the smallest values of
each tensor, and only how many of each is to be found. A sample tells about where the order is cut; the values around
that place are then looked at exactly, and where the sample was wrong, more of them.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.core.ranking import KnownScores, Ranked, ascending, counts_below
from prunewald.util.tensors import pieces

Values = Callable[[], Tensor]  # of one tensor, none below zero; computed anew at each call

_SAMPLE = 1 << 14  # so many values of a large tensor are sampled; a tensor of four times as many is looked at whole
_MARGIN = 0.02  # the share of a tensor's values, on either side of the estimated cut, that is looked at first


class Span(NamedTuple):
    """Two values of a tensor: what is smaller than the first is pruned, what is greater than the second stays."""

    low: float
    high: float


class Around(NamedTuple):
    """The positive values of a tensor within a span, in ascending order, with their LAMP scores."""

    ranked: Ranked
    below: int  # how many positive values are smaller
    above: int  # how many are greater

    def settled(self, pruned: int) -> bool:
        """Whether the cut lies inside: one that is pruned, or one that stays, shows it for all beyond it."""
        return (pruned > 0 or not self.below) and (pruned < len(self.ranked.score) or not self.above)


def lamp_kept(values: Mapping[str, Values], keep: int) -> dict[str, int] | None:
    """How many values of each tensor stay where `keep` do in all: none that is zero, and of each tensor the greatest.

    None where no more than `keep` are positive, so that LAMP decides nothing.
    """
    samples = {name: Sample.of(of()) for name, of in values.items()}
    keep = max(keep, sum(sample.positive > 0 for sample in samples.values()))
    positive = {name: sample.positive for name, sample in samples.items()}
    rest = sum(positive.values()) - keep
    if rest <= 0:
        return None if rest else positive
    margin, cut = _MARGIN, _estimate(samples, rest)
    while True:
        around = {name: samples[name].around(of, cut, margin) for name, of in values.items()}
        doubtful = rest - sum(one.below for one in around.values())
        found = counts_below(KnownScores({name: one.ranked for name, one in around.items()}), doubtful)
        if all(one.settled(found[name]) for name, one in around.items()):
            return {name: positive[name] - one.below - found[name] for name, one in around.items()}
        margin *= 8


class Sample(NamedTuple):
    """Some values of a tensor, evenly spaced, in ascending order, and what is known of all of them."""

    values: Tensor  # the positive ones
    scores: Tensor  # their LAMP scores, as far as the sample tells
    weight: float  # how many values each stands for
    top: Tensor  # the greatest value of all
    positive: int  # how many of all are

    @classmethod
    def of(cls, values: Tensor) -> "Sample":
        """A sample of these values; a small tensor is its own."""
        flat = values.reshape(-1)
        step = -(-flat.numel() // _SAMPLE) if flat.numel() > 4 * _SAMPLE else 1
        some = flat[::step]
        found, top = ascending(some[some > 0]), flat.max()
        square = _relative(found, top).square()
        scores = square / (square.flip(0).cumsum(0).flip(0) * step)
        # Sums that are made in parallel may be out of order in the last digit.
        return cls(found, scores.cummax(0).values, step, top, int(torch.count_nonzero(flat)))

    def span(self, cut: float, margin: float) -> Span:
        """The values whose place is within `margin` of where the scores reach the cut."""
        place, reach = int(torch.searchsorted(self.scores, cut)), 1 + int(margin * len(self.values))
        low, high = place - reach, place + reach
        return Span(
            float(self.values[low]) if low >= 0 else 0.0,
            float(self.values[high]) if high < len(self.values) else torch.inf,
        )

    def around(self, values: Values, cut: float, margin: float) -> Around:
        """The values about the cut, with their scores: each square over the sum of the squares from it upwards."""
        if self.weight == 1:
            return Around(Ranked(self.scores, self.values.double()), 0, 0)
        inside, above, squares, span = [], 0, 0.0, self.span(cut, margin)
        for piece in pieces(values()):
            within = (piece >= span.low).logical_and_(piece <= span.high)
            inside.append(piece[within.logical_and_(piece > 0)])
            if span.high < torch.inf:
                greater = piece > span.high
                above += int(torch.count_nonzero(greater))
                large = _relative(piece, self.top, torch.float32) * greater
                squares += float(large.square_().sum(dtype=torch.float64))
        found = ascending(torch.cat(inside))
        below = self.positive - above - len(found)
        square = _relative(found, self.top).square_()
        score = square / (square.flip(0).cumsum(0).flip(0) + squares)
        return Around(Ranked(score.cummax(0).values, found.double()), below, above)


def _estimate(samples: Mapping[str, Sample], count: int) -> float:
    """The score below which about `count` values lie."""
    scores = torch.cat([sample.scores.cpu() for sample in samples.values()])
    each = [torch.full((len(s.scores),), float(s.weight), device="cpu") for s in samples.values()]
    ordered, order = scores.sort()
    place = int(torch.searchsorted(torch.cat(each)[order].cumsum(0, dtype=torch.float64), count))
    return float(ordered[min(place, len(ordered) - 1)]) if len(ordered) else 0.0


def _relative(values: Tensor, top: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Values over the greatest, so that no square overflows; beside infinite ones all others are nothing."""
    return (values == top).to(dtype) if bool(top.isinf()) else values.to(dtype) / top.to(dtype)
