"""LAMP's order over all tensors, and how many weights of each it prunes; no large tensor is sorted.

The LAMP score of a value is its square over the sum of the squares of all values of its tensor that are not smaller
(Lee et al. 2021). Within a tensor it rises with the value, so the first of the common order are the smallest values of
each tensor, and only how many of each is to be found. A sample tells about where the order is cut; the values around
that place are then looked at exactly, and where the sample was wrong, more of them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prunewald.core.ranking import KnownScores, Ranked, counts_below
from prunewald.util.tensors import count_true, places

Values = Callable[[], Iterable[Tensor]]  # of one tensor, none below zero, in flat pieces; computed anew at each call

_WHOLE = 1 << 16  # a tensor of no more values is looked at whole,
_SAMPLE = 1 << 15  # and so many values of a larger one are sampled
_POOLED = 1 << 13  # and so many scores of a tensor tell where all tensors together are cut
_MARGIN = 0.01  # the share of a tensor's values, on either side of the estimated cut, that is looked at first


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


class Sample(NamedTuple):
    """Some values of a tensor, evenly spaced, in ascending order, and what is known of all of them."""

    values: Tensor  # the positive ones
    scores: Tensor  # their LAMP scores, as far as the sample tells
    weight: float  # how many values each stands for
    top: Tensor  # the greatest value of all
    positive: int  # how many of all are

    @classmethod
    def of(cls, values: Values, size: int) -> "Sample":
        """A sample of these values, of which there are so many; a small tensor is its own."""
        step = -(-size // _SAMPLE) if size > _WHOLE else 1
        some, tops, positive, seen = [], [], 0, 0
        for piece in values():
            some.append(piece[-seen % step :: step].clone())
            tops.append(piece.max())
            positive += int(torch.count_nonzero(piece))
            seen += piece.numel()
        found, top = torch.cat(some), torch.stack(tops).max()
        found = _ascending(found[found > 0])
        square = _relative(found, top).square()
        scores = square / (square.flip(0).cumsum(0).flip(0) * step)
        # Sums that are made in parallel may be out of order in the last digit.
        return cls(found, scores.cummax(0).values, step, top, positive)

    def around(self, values: Values, cut: float, margin: float) -> Around:
        """The values about the cut, with their scores: each square over the sum of the squares from it upwards."""
        place, reach = int(torch.searchsorted(self.scores, cut)), 1 + int(margin * len(self.values))
        low, high = max(place - reach, 0), min(place + reach, len(self.values) - 1)
        if self.weight == 1:
            within = slice(low, high + 1)
            ranked = Ranked(self.scores[within], self.values[within].double())
            return Around(ranked, low, len(self.values) - low - len(ranked.score))
        return self._exactly(
            values(),
            Span(
                float(self.values[low]) if place >= reach else 0.0,
                float(self.values[high]) if high == place + reach else torch.inf,
            ),
        )

    def _exactly(self, values: Iterable[Tensor], span: Span) -> Around:
        """The values within a span, with what those above it add to the sums."""
        inside, above, squares = [], 0, 0.0
        for piece in values:
            upto = piece <= span.high
            inside.append(piece[places((piece < span.low).logical_xor_(upto))])
            if span.high < torch.inf:
                above += piece.numel() - count_true(upto)
                large = _relative(torch.threshold(piece, span.high, 0.0), self.top, torch.float32)
                squares += float(large.square_().double().sum())
        found = torch.cat(inside)
        found = _ascending(found if span.low > 0 else found[found > 0])
        below = self.positive - above - len(found)
        square = _relative(found, self.top).square_()
        score = square / (square.flip(0).cumsum(0).flip(0) + squares)
        return Around(Ranked(score.cummax(0).values, found.double()), below, above)


class Samples(NamedTuple):
    """Samples of all tensors, and their scores in one order: what is the same at every sparsity."""

    each: Mapping[str, Sample]
    scores: Tensor  # ascending
    upto: Tensor  # about how many values have no greater score than each of these

    @classmethod
    def of(cls, values: Mapping[str, Values], sizes: Mapping[str, int]) -> "Samples":
        """Of the values of each tensor, of which there are so many."""
        each = {name: Sample.of(of, sizes[name]) for name, of in values.items()}
        steps = [-(-len(sample.scores) // _POOLED) or 1 for sample in each.values()]
        some = [sample.scores[step // 2 :: step].cpu() for sample, step in zip(each.values(), steps, strict=True)]
        weights = [s.weight * len(s.scores) / max(len(one), 1) for s, one in zip(each.values(), some, strict=True)]
        scores, order = torch.cat(some).sort()
        stands = torch.cat([torch.full((len(s),), w, device="cpu") for s, w in zip(some, weights, strict=True)])
        return cls(each, scores, stands[order].cumsum(0, dtype=torch.float64))

    def cut(self, count: int) -> float:
        """The score below which about `count` values lie."""
        place = int(torch.searchsorted(self.upto, count))
        return float(self.scores[min(place, len(self.scores) - 1)]) if len(self.scores) else 0.0


def lamp_kept(samples: Samples, values: Mapping[str, Values], keep: int) -> dict[str, int] | None:
    """How many values of each tensor stay where `keep` do in all: none that is zero, and of each tensor the greatest.

    None where no more than `keep` are positive, so that LAMP decides nothing.
    """
    positive = {name: sample.positive for name, sample in samples.each.items()}
    keep = max(keep, sum(count > 0 for count in positive.values()))
    rest = sum(positive.values()) - keep
    if rest <= 0:
        return None if rest else positive
    margin, cut = _MARGIN, samples.cut(rest)
    while True:
        around = {name: samples.each[name].around(of, cut, margin) for name, of in values.items()}
        doubtful = rest - sum(one.below for one in around.values())
        found = counts_below(KnownScores({name: one.ranked for name, one in around.items()}), doubtful)
        if all(one.settled(found[name]) for name, one in around.items()):
            return {name: positive[name] - one.below - found[name] for name, one in around.items()}
        margin *= 8


def _ascending(values: Tensor) -> Tensor:
    """Sorted; on a CPU numpy is several times faster."""
    return torch.from_numpy(np.sort(values.detach().numpy())) if values.is_cpu else values.sort().values


def _relative(values: Tensor, top: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Values over the greatest, so that no square overflows; beside infinite ones all others are nothing."""
    return (values == top).to(dtype) if bool(top.isinf()) else values.to(dtype) / top.to(dtype)
