"""Exact-count, tie-stable selection at any size.

The order is by score, ties by magnitude, then by position. No large tensor is sorted and nothing concatenated: what
lies near the place where the order is cut is picked out and put in order, and where that is too much, the cut is found
by counting. Rows, of which there are many, are taken a chunk at a time, and sorted where that does not decide them.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from prunewald.core.kth import TOGETHER, Window, kth_smallest, sample
from prunewald.model.layouts import Layout
from prunewald.util.tensors import count_true, in_pieces, pieces, places

FEW = 1 << 12  # so many weights of one tensor are put in order
_SORTED = 1 << 22  # so many weights are sorted at once
_SHORT = 8  # rows of so many weights are not,
_CACHED = 1 << 18  # and so many weights of them are compared at once, which a CPU's cache holds

Count: TypeAlias = int | Tensor  # of the weights of a tensor; as a tensor: of each of its rows


class Ranked(NamedTuple):
    """What orders the weights of one tensor: the score; ties by the magnitude of the weight.

    `dead` is True where no gradient reached a weight. A score below zero there only says where the weight stands in the
    order of the dead; its size means nothing.
    """

    score: Tensor
    weight: Tensor
    dead: Tensor | None = None

    def by_magnitude(self, alive: Tensor | None) -> "Ranked":
        """The same weights in the order of |w|; `alive` where some are pruned."""
        size = in_pieces(torch.abs, self.weight)
        return Ranked(size if alive is None else zeros_last(size, self.weight, alive), self.weight)


class Scores(Mapping[str, Ranked]):
    """The tensors of one pruning by name: shapes, weights, and what orders them, which is computed when asked for."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self.layouts: Mapping[str, Layout] = {}  # of the tensors that are not (out, in, ...)
        self.layers: Mapping[str, str] = {}  # of each tensor, the layer in which it is counted; its own by default
        self.found: dict[str, Any] = {}  # what an allocation found that serves it at other sparsities too

    @abstractmethod
    def __getitem__(self, name: str) -> Ranked:
        """The scores of one tensor."""

    @abstractmethod
    def weight(self, name: str) -> Tensor:
        """The weights of one tensor, without scoring them."""

    def spread(self, name: str) -> float:
        """The standard deviation of the weights of a tensor, or where it is known, of the survivors of its layer."""
        return float(self.weight(name).double().std())

    def only(self, *names: str) -> "Scores":
        """Some of the tensors by themselves."""
        return _Only(self, names)

    def by_layer(self) -> list["Scores"]:
        """The tensors of each layer by themselves."""
        layers: dict[str, list[str]] = {}
        for name in self:
            layers.setdefault(self.layers.get(name, name), []).append(name)
        return [self.only(*names) for names in layers.values()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class KnownScores(Scores):
    """The scores of tensors that are at hand."""

    def __init__(self, ranked: Mapping[str, Ranked]) -> None:
        super().__init__({name: one.score.shape for name, one in ranked.items()})
        self._ranked = ranked

    def __getitem__(self, name: str) -> Ranked:
        return self._ranked[name]

    def weight(self, name: str) -> Tensor:
        """The weights that break ties."""
        return self._ranked[name].weight


class _Only(Scores):
    """Some tensors of several, still computed when asked for."""

    def __init__(self, scores: Scores, names: Sequence[str]) -> None:
        super().__init__({name: scores.shapes[name] for name in names})
        self.layouts, self.layers = scores.layouts, scores.layers
        self._scores = scores

    def __getitem__(self, name: str) -> Ranked:
        return self._scores[name]

    def weight(self, name: str) -> Tensor:
        return self._scores.weight(name)

    def spread(self, name: str) -> float:
        return self._scores.spread(name)


class Cut(NamedTuple):
    """Where the order is cut: below `score`, and of those at it as many as `ties` tells."""

    score: Tensor
    ties: "Ties | None"  # None: all that are at the score


class Ties(NamedTuple):
    """Of the weights at the cut's score: those below `magnitude`, and of those at it the `first` by position."""

    magnitude: Tensor
    first: int


def zeros_last(score: Tensor, weight: Tensor, alive: Tensor | None) -> Tensor:
    """What is pruned already ranks below everything, then what is zero anyway: a sparsity is a share of zeros."""
    lowest = torch.finfo(score.dtype).min
    if alive is None and int(torch.count_nonzero(weight)) == weight.numel():
        return score
    zero = weight == 0
    if alive is None and bool(score[zero].max() <= score.min()):
        return score  # zeros rank last as it is: no copy is needed
    score = score.clamp(min=lowest).masked_fill_(zero, lowest)
    return score if alive is None else score.masked_fill(~alive, -torch.inf)


def smallest(ranked: Ranked, count: Count) -> Tensor:
    """True for the `count` first in the order; with a count a row, for the first of each row."""
    if isinstance(count, Tensor):
        return smallest_by_row(ranked, count)
    if count <= 0:
        return torch.zeros(ranked.score.shape, dtype=torch.bool, device=ranked.score.device)
    if count >= ranked.score.numel():
        return torch.ones(ranked.score.shape, dtype=torch.bool, device=ranked.score.device)
    if ranked.score.numel() <= FEW:
        flat = Ranked(ranked.score.reshape(-1), ranked.weight.reshape(-1))
        chosen = torch.zeros(flat.score.shape, dtype=torch.bool, device=flat.score.device)
        chosen[in_order(flat)[:count]] = True
        return chosen.view(ranked.score.shape)
    picked = _picked(ranked, count) if ranked.score.numel() > TOGETHER else None
    return below(find_cut(lambda: [ranked], count), ranked, 0)[0] if picked is None else picked


def _picked(ranked: Ranked, count: int) -> Tensor | None:
    """The same for a large tensor, by what is near the cut alone; None where that is too much, or does not hold it."""
    window = Window.about(count, *sample(pieces(ranked.score)))
    chosen = torch.empty(ranked.score.shape, dtype=torch.bool, device=ranked.score.device)
    near, start, found = [], 0, 0
    for piece, room in zip(pieces(ranked.score), pieces(chosen), strict=True):
        near.append(window.below(piece, room)[1].add_(start))
        start, found = start + piece.numel(), found + near[-1].numel()
        if found > window.limit:
            return None
    at, rest = torch.cat(near), count - count_true(chosen)
    if not 0 <= rest <= found:
        return None
    score, weight = (tensor.detach().reshape(-1)[at] for tensor in (ranked.score, ranked.weight))
    chosen.view(-1)[at[smallest(Ranked(score, weight), rest)]] = True
    return chosen


def smallest_by_row(ranked: Ranked, counts: Tensor) -> Tensor:
    """True for the first in the order of each row, as many as its count says."""
    score, weight = as_rows(ranked.score), as_rows(ranked.weight)
    if counts.shape != score.shape[:1]:
        raise ValueError(
            f"counts of shape {tuple(counts.shape)} for a tensor of shape {tuple(ranked.score.shape)}: "
            f"give one for each of its {len(score)} rows"
        )
    short = 0 < score.shape[1] <= _SHORT
    step = max(1, (_CACHED if short and score.device.type == "cpu" else _SORTED) // max(score.shape[1], 1))
    columns = zip(score.split(step), weight.split(step), counts.to(score.device).split(step), strict=True)
    heads = _short_heads if short else _row_heads
    return torch.cat([heads(Ranked(s, w), count) for s, w, count in columns]).view(ranked.score.shape)


def _short_heads(rows: Ranked, counts: Tensor) -> Tensor:
    """True for the first of each of many short rows: each of a row is compared with each other one, by columns."""
    scores, weights = rows.score.t().contiguous(), None
    # How many of its row come before each: by position, until a comparison says otherwise.
    place = torch.arange(len(scores), dtype=torch.int8, device=scores.device)[:, None].repeat(1, scores.shape[1])
    for early, late in combinations(range(len(scores)), 2):
        later_first = scores[late] < scores[early]
        tied = scores[late] == scores[early]
        if bool(tied.any()):
            weights = rows.weight.abs().t().contiguous() if weights is None else weights
            later_first |= tied & (weights[late] < weights[early])
        moved = later_first.view(torch.int8)
        place[early] += moved
        place[late] -= moved
    return (place < counts).t().contiguous()


def _row_heads(rows: Ranked, counts: Tensor) -> Tensor:
    """True for the first of each of a few rows; they are sorted only where their counts differ or cut a tie."""
    count = int(counts[0])
    if not 0 < count < rows.score.shape[1] or bool((counts != count).any()):
        return _sorted_heads(rows, counts)
    chosen = rows.score <= _kth_of_rows(rows.score, count)
    tied = (chosen.sum(1) > count).nonzero().view(-1)
    if tied.numel():
        chosen[tied] = _sorted_heads(Ranked(rows.score[tied], rows.weight[tied]), counts[tied])
    return chosen


def _kth_of_rows(rows: Tensor, k: int) -> Tensor:
    """The k-th smallest of each row, as a column; on a CPU numpy is ten times faster."""
    if rows.device.type != "cpu":
        return rows.kthvalue(k, dim=1, keepdim=True).values
    return torch.from_numpy(np.partition(rows.detach().numpy(), k - 1, axis=1)[:, k - 1 : k].copy())


def _sorted_heads(rows: Ranked, counts: Tensor) -> Tensor:
    chosen = torch.empty(rows.score.shape, dtype=torch.bool, device=rows.score.device)
    place = torch.arange(rows.score.shape[1], device=rows.score.device)
    return chosen.scatter_(1, in_order(rows), place < counts[:, None])


def in_order(ranked: Ranked) -> Tensor:
    """The places along the last dimension, from the first in the order to the last."""
    light = ranked.weight.abs().sort(dim=-1, stable=True).indices
    # Adding zero makes -0.0 and 0.0 one value for every way of sorting.
    return light.gather(-1, (ranked.score.gather(-1, light) + 0.0).sort(dim=-1, stable=True).indices)


def as_rows(tensor: Tensor) -> Tensor:
    """A tensor as the matrix of its rows, the indices of dimension 0; a vector is one row."""
    return tensor.reshape(1, -1) if tensor.dim() < 2 else tensor.flatten(1)


def counts_below(scores: Scores, count: int) -> dict[str, int]:
    """How many of the `count` first of all tensors together lie in each."""
    if count <= 0:
        return dict.fromkeys(scores, 0)
    total = sum(scores.sizes.values())
    if count >= total:
        return dict(scores.sizes)
    if total <= TOGETHER:
        each = [(one.score.reshape(-1), one.weight.reshape(-1)) for one in scores.values()]
        device = each[0][0].device
        joined = Ranked(*(torch.cat([part.to(device) for part in parts]) for parts in zip(*each, strict=True)))
        parts = smallest(joined, count).split(list(scores.sizes.values()))
        return {name: int(torch.count_nonzero(part)) for name, part in zip(scores.sizes, parts, strict=True)}
    if (near := _near(scores, count)) is not None:
        return near
    cut = find_cut(scores.values, count)
    taken, result = 0, {}
    for name, ranked in scores.items():
        chosen, taken = below(cut, ranked, taken)
        result[name] = int(torch.count_nonzero(chosen))
    return result


def _near(scores: Scores, count: int) -> dict[str, int] | None:
    """The same for large tensors, by what is near the cut alone; None where that is too much, or does not hold it."""
    some, total = sample(piece for ranked in scores.values() for piece in pieces(ranked.score))
    window, sure, near = Window.about(count, some, total), dict.fromkeys(scores, 0), {}
    for name, ranked in scores.items():
        parts = []
        for piece, weight in zip(pieces(ranked.score), pieces(ranked.weight), strict=True):
            under, at = window.below(piece)
            sure[name] += count_true(under)
            parts.append((piece[at], weight[at]))
        near[name] = Ranked(*map(torch.cat, zip(*parts, strict=True)))
        if sum(len(one.score) for one in near.values()) > window.limit:
            return None
    inside, rest = KnownScores(near), count - sum(sure.values())
    if not 0 <= rest <= sum(inside.sizes.values()):
        return None
    return {name: sure[name] + more for name, more in counts_below(inside, rest).items()}


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
        at = places(piece == score)
        tied, limit = weight[at].abs(), cut.ties.magnitude.to(weight)
        first = at[tied == limit][: cut.ties.first - taken]
        flat[start + at[tied < limit]] = True
        flat[start + first] = True
        taken += first.numel()
        start += piece.numel()
    return chosen, taken


def _at(tensors: Iterable[Ranked], score: Tensor) -> Iterator[Tensor]:
    """The magnitudes of the weights at a score."""
    for ranked in tensors:
        for piece, weight in zip(pieces(ranked.score), pieces(ranked.weight), strict=True):
            yield weight[piece == score.to(piece)].abs()
