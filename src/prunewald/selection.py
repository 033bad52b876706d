"""Exact-count, tie-stable selection at any size.

The order is by score, ties by magnitude, then by position. Nothing is sorted and nothing concatenated: the k-th
smallest value is found by a radix search over the bits of the floats, which only ever counts, piece by piece.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.weights import pieces

_DIGIT = 16
_FEW = 1 << 12  # below this, counting 2^16 digits costs more than it saves
_KEPT = 1 << 22  # scores of so many weights are kept from pass to pass
_INTS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Ranked(NamedTuple):
    """What orders the weights of one tensor: the score; ties by the magnitude of the weight."""

    score: Tensor
    weight: Tensor


class Scores(Mapping[str, Ranked]):
    """The scores of many tensors by name, computed when asked for; those of a large model are never all kept."""

    def __init__(self, sizes: Mapping[str, int], rank: Callable[[str], Ranked]) -> None:
        self.sizes = dict(sizes)
        self._rank = cache(rank) if sum(self.sizes.values()) <= _KEPT else rank

    def __getitem__(self, name: str) -> Ranked:
        return self._rank(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


class Cut(NamedTuple):
    """Where the order is cut: below `score`, and of those at it as many as `ties` tells."""

    score: Tensor
    ties: "Ties | None"  # None: all that are at the score


class Ties(NamedTuple):
    """Of the weights at the cut's score: those below `magnitude`, and of those at it the `first` by position."""

    magnitude: Tensor
    first: int


def smallest(ranked: Ranked, count: int) -> Tensor:
    """True for the `count` first in the order."""
    if count <= 0:
        return torch.zeros(ranked.score.shape, dtype=torch.bool, device=ranked.score.device)
    if count >= ranked.score.numel():
        return torch.ones(ranked.score.shape, dtype=torch.bool, device=ranked.score.device)
    chosen, _ = below(find_cut(lambda: [ranked], count), ranked, 0)
    return chosen


def counts_below(scores: Scores, count: int) -> dict[str, int]:
    """How many of the `count` first of all tensors together lie in each."""
    if count <= 0:
        return dict.fromkeys(scores, 0)
    if count >= sum(scores.sizes.values()):
        return dict(scores.sizes)
    cut = find_cut(scores.values, count)
    taken, result = 0, {}
    for name, ranked in scores.items():
        chosen, taken = below(cut, ranked, taken)
        result[name] = int(torch.count_nonzero(chosen))
    return result


def find_cut(tensors: Callable[[], Iterable[Ranked]], count: int) -> Cut:
    """The cut with exactly `count` weights below it; `tensors` is called anew for each pass."""
    score, rest, equals = kth_smallest(lambda: (piece for t in tensors() for piece in pieces(t.score)), count)
    if rest == equals:
        return Cut(score, None)
    magnitude, first, _ = kth_smallest(lambda: _at(tensors(), score), rest)
    return Cut(score, Ties(magnitude, first))


def below(cut: Cut, ranked: Ranked, taken: int) -> tuple[Tensor, int]:
    """True for what lies below the cut in one tensor; `taken` carries the used-up ties from tensor to tensor."""
    score = cut.score.to(ranked.score)
    if cut.ties is None:
        return ranked.score <= score, 0
    chosen = (ranked.score < score).contiguous()
    flat, start = chosen.view(-1), 0
    for piece, weight in zip(pieces(ranked.score), pieces(ranked.weight), strict=True):
        at = (piece == score).nonzero().view(-1)
        tied, limit = weight[at].abs(), cut.ties.magnitude.to(weight)
        first = at[tied == limit][: cut.ties.first - taken]
        flat[start + at[tied < limit]] = True
        flat[start + first] = True
        taken += first.numel()
        start += piece.numel()
    return chosen, taken


def kth_smallest(values: Callable[[], Iterable[Tensor]], k: int) -> tuple[Tensor, int, int]:
    """The k-th smallest of all values (k from 1), how many of its equals are among these, and how many in all."""
    few = _gather(values())
    if few is not None:
        value = few.kthvalue(k).values
        return value, k - int(torch.count_nonzero(few < value)), int(torch.count_nonzero(few == value))
    return _radix(values, k)


def _gather(values: Iterable[Tensor]) -> Tensor | None:
    """All values in one tensor, if they are few."""
    found: list[Tensor] = []
    for piece in values:
        found.append(piece)
        if sum(map(len, found)) > _FEW:
            return None
    return torch.cat([piece.to(found[0].device) for piece in found])


def _radix(values: Callable[[], Iterable[Tensor]], k: int) -> tuple[Tensor, int, int]:
    """The same by counting: the digits of the answer from the top, with one pass over the values for each."""
    example = next(iter(values()))
    prefix: int | None = None
    for shift in range(8 * example.element_size() - _DIGIT, -1, -_DIGIT):
        counts = torch.zeros(1 << _DIGIT, dtype=torch.int64, device=example.device)
        for piece in values():
            counts += _histogram(_bits(piece), shift, prefix).to(counts.device)
        digits = _ascending(prefix)
        upto = counts.cpu()[digits].cumsum(0)
        place = int(torch.searchsorted(upto, k))
        k -= int(upto[place - 1]) if place else 0
        digit = int(digits[place])
        # The top digit carries the sign.
        prefix = digit - ((digit >> (_DIGIT - 1)) << _DIGIT) if prefix is None else (prefix << _DIGIT) | digit
    value = torch.tensor(prefix, dtype=_INTS[example.dtype]).view(example.dtype)
    return value, k, int(counts[digit])


def _bits(values: Tensor) -> Tensor:
    # Adding zero makes -0.0 and 0.0 one value.
    return (values + 0.0).view(_INTS[values.dtype])


def _histogram(bits: Tensor, shift: int, prefix: int | None) -> Tensor:
    if prefix is not None:
        bits = bits[(bits >> (shift + _DIGIT)) == prefix]
    return torch.bincount((bits >> shift) & ((1 << _DIGIT) - 1), minlength=1 << _DIGIT)


def _ascending(prefix: int | None) -> Tensor:
    """The next digit's values in the order of the floats: the bits of negative floats count downwards."""
    digits = torch.arange(1 << _DIGIT)
    if prefix is None:
        half = 1 << (_DIGIT - 1)
        return torch.cat([digits[half:].flip(0), digits[:half]])
    return digits.flip(0) if prefix < 0 else digits


def _at(tensors: Iterable[Ranked], score: Tensor) -> Iterator[Tensor]:
    """The magnitudes of the weights at a score."""
    for ranked in tensors:
        for piece, weight in zip(pieces(ranked.score), pieces(ranked.weight), strict=True):
            yield weight[piece == score.to(piece)].abs()
