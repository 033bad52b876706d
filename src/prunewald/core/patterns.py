"""Which weights of a tensor stay, given how many."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from prunewald.core.base import Pattern
from prunewald.core.ranking import Count, Ranked, as_rows, smallest, smallest_by_row
from prunewald.model.layouts import Layout
from prunewald.util.arguments import one_of, whole
from prunewald.util.registry import pattern

GroupScore: TypeAlias = Literal["wald", "mean", "l1"]
_CHUNK = 1 << 20  # groups of so many weights are summed at once


@pattern("element")
@dataclass(frozen=True)
class Element(Pattern):
    """Any single weight may go: the lowest scores do."""

    single: ClassVar[bool] = True

    def __call__(self, ranked: Ranked, keep: Count) -> Tensor:
        """Keep the `keep` highest scores."""
        gone = _rest(ranked.score, keep) if isinstance(keep, Tensor) else ranked.score.numel() - keep
        return smallest(ranked, gone).logical_not_()


@pattern("n-of-m")
@dataclass(frozen=True)
class KeepNOfM(Pattern):
    """`n` of every `m` consecutive weights along `dim` stay, 2:4 by default.  Mishra et al. (2021).

    On the way there, from each m only the m - n lowest may go, and of all these the lowest do. `dim` 1 is the input
    axis of the layer, channels in a convolution, which is what sparse tensor cores want.
    """

    n: int = 2
    m: int = 4
    dim: int = 1

    def __post_init__(self) -> None:
        whole("n", self.n, 1)
        whole("m", self.m, 2)
        whole("dim", self.dim)
        if self.n >= self.m:
            raise ValueError(f"n of m are kept, so n must be below m, not n={self.n} of m={self.m}")

    @property
    def sparsity(self) -> float:
        """The highest it reaches: where it keeps exactly n of m."""
        return 1 - self.n / self.m

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError where the groups do not fit a tensor."""
        _check_dim(self, self.dim, shape)
        _check_divides(self, f"dimension {self.dim}", _matrix_shape(shape)[self.dim], "m", self.m, shape, " or dim")

    def __call__(self, ranked: Ranked, keep: Count) -> Tensor:
        """Keep the `keep` highest scores, but in each group at least the n highest."""
        self.check(ranked.score.shape)
        if isinstance(keep, Tensor) and self.dim == 0:
            raise ValueError(_across_rows(self, "choose dim=1"))
        self._check_keep(keep, ranked.score)
        low = self._lowest(ranked)
        if self._is_all(keep, low.numel()):
            return low.logical_not_()
        rows = (len(keep), -1) if isinstance(keep, Tensor) else (-1,)  # every row has as many candidates
        spare = Ranked(ranked.score[low].view(rows), ranked.weight[low].view(rows))
        kept = torch.ones_like(low)
        kept[low] = smallest(spare, _rest(ranked.score, keep)).logical_not_().view(-1)
        return kept

    def _is_all(self, keep: Count, size: int) -> bool:
        """Whether exactly n of each m stay."""
        return bool((keep.sum() if isinstance(keep, Tensor) else keep) == size * self.n // self.m)

    def _check_keep(self, keep: Count, score: Tensor) -> None:
        size = as_rows(score).shape[1] if isinstance(keep, Tensor) else score.numel()
        least, asked = size * self.n // self.m, int(keep.min()) if isinstance(keep, Tensor) else keep
        if asked < least:
            raise ValueError(
                f"{self!r} keeps at least {least:,} of {size:,} weights, and was asked for {asked:,}: ask for a "
                f"sparsity of at most {self.sparsity:g}, with scope='layer' if the scope shares out unevenly"
            )

    def _lowest(self, ranked: Ranked) -> Tensor:
        """True for the m - n lowest of each group."""
        moved = _matrix(ranked.score).movedim(self.dim, -1)
        weight = _matrix(ranked.weight).movedim(self.dim, -1)
        groups = Ranked(moved.reshape(-1, self.m), weight.reshape(-1, self.m))
        counts = torch.full((len(groups.score),), self.m - self.n, device=moved.device)
        low = smallest_by_row(groups, counts).view(moved.shape).movedim(-1, self.dim)
        return low.reshape(ranked.score.shape)


@pattern("block")
@dataclass(frozen=True)
class Block(Pattern):
    """Blocks of the matrix weight.flatten(1) stay or go as a whole.  Narang et al. (2017).

    `score` of a group: "wald", the joint Wald statistic, the sum of squares of its scores; "mean", their mean; "l1",
    the sum of |w|. Scores that only order (of dead, zero or pruned weights) count 0.
    """

    rows: int = 4
    cols: int = 4
    score: GroupScore = "wald"

    def __post_init__(self) -> None:
        whole("rows", self.rows, 1)
        whole("cols", self.cols, 1)
        one_of("score", self.score, get_args(GroupScore))

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError where the blocks do not fit a tensor."""
        rows, *rest = _matrix_shape(shape)
        _check_divides(self, "the number of rows", rows, "rows", self.rows, shape)
        _check_divides(self, "the length of a row", math.prod(rest), "cols", self.cols, shape)

    def nearest(self, shape: Sequence[int], keep: Count) -> Count:
        """The count of whole blocks nearest to `keep`."""
        size = self.rows * self.cols
        across = math.prod(_matrix_shape(shape)[1:]) // self.cols
        groups = across if isinstance(keep, Tensor) else math.prod(shape) // size
        return _whole_groups(keep, size, groups) * size

    def __call__(self, ranked: Ranked, keep: Count) -> Tensor:
        """Keep the blocks with the highest group scores."""
        shape = ranked.score.shape
        self.check(shape)
        if isinstance(keep, Tensor) and self.rows > 1:
            raise ValueError(_across_rows(self, "choose rows=1"))
        grid = (as_rows(ranked.score).shape[0] // self.rows, as_rows(ranked.score).shape[1] // self.cols)
        joint = _joint(ranked, self.score, lambda t: self._blocks(t, grid))
        blocks = Ranked(joint.score.view(grid), joint.weight.view(grid))
        groups = _whole_groups(keep, self.rows * self.cols, grid[1] if isinstance(keep, Tensor) else math.prod(grid))
        kept = smallest(blocks, _rest(blocks.score, groups)).logical_not_()
        return kept.repeat_interleave(self.rows, 0).repeat_interleave(self.cols, 1).view(shape)

    def _blocks(self, tensor: Tensor, grid: tuple[int, int]) -> Tensor:
        """The blocks of a tensor, laid out as one row each."""
        cut = as_rows(tensor).reshape(grid[0], self.rows, grid[1], self.cols)
        return cut.transpose(1, 2).reshape(math.prod(grid), -1)


@pattern("filter")
@dataclass(frozen=True)
class Filter(Pattern):
    """Whole filters or neurons stay or go: outputs with `dim` 0, input channels with 1.  Li et al. (2017).

    `score` of a group: "wald", the joint Wald statistic, the sum of squares of its scores; "mean", their mean; "l1",
    the sum of |w|. Scores that only order (of dead, zero or pruned weights) count 0.
    """

    dim: int = 0
    score: GroupScore = "wald"

    def __post_init__(self) -> None:
        whole("dim", self.dim)
        one_of("score", self.score, get_args(GroupScore))

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError where a tensor has no such dimension."""
        _check_dim(self, self.dim, shape)

    def nearest(self, shape: Sequence[int], keep: Count) -> Count:
        """The count of whole filters nearest to `keep`."""
        groups = _matrix_shape(shape)[self.dim]
        size = math.prod(shape) // groups
        return _whole_groups(keep, size, groups) * size

    def __call__(self, ranked: Ranked, keep: Count) -> Tensor:
        """Keep the filters with the highest group scores."""
        self.check(ranked.score.shape)
        if isinstance(keep, Tensor):
            raise ValueError(f"{self!r} keeps whole filters, and the counts are by row: choose scope='layer'")
        filters = _joint(ranked, self.score, lambda t: _matrix(t).movedim(self.dim, 0).flatten(1))
        groups = filters.score.numel()
        kept = smallest(filters, groups - _whole_groups(keep, ranked.score.numel() // groups, groups)).logical_not_()
        shape = _matrix(ranked.score).shape
        placed = kept.view([-1 if i == self.dim else 1 for i in range(len(shape))])
        return placed.expand(shape).contiguous().view(ranked.score.shape)


def by_layout(pattern: Pattern, layout: Layout) -> Callable[[Ranked, Count], Tensor]:
    """A pattern for a weight that is not (out, in, ...): the weight is turned before, and the mask back after."""

    def keep(ranked: Ranked, count: Count) -> Tensor:
        score, weight, dead = ranked
        turned = Ranked(layout.swap(score), layout.swap(weight), None if dead is None else layout.swap(dead))
        return layout.swap(pattern(turned, count))

    return keep


# ---- groups ------------------------------------------------------------------------------------------------------


def _joint(ranked: Ranked, score: GroupScore, grouped: Callable[[Tensor], Tensor]) -> Ranked:
    """One score for each group, ties by its L1 norm; `grouped` lays a tensor out with one group in each row."""
    values, weight = grouped(ranked.score), grouped(ranked.weight)
    step = max(1, _CHUNK // values.shape[1])
    dead = repeat(None) if ranked.dead is None else grouped(ranked.dead).split(step)
    chunks = zip(values.split(step), weight.split(step), dead, strict=False)
    found = [_group_scores(Ranked(*chunk), score) for chunk in chunks]
    return Ranked(torch.cat([f.score for f in found]), torch.cat([f.weight for f in found]))


def _group_scores(rows: Ranked, score: GroupScore) -> Ranked:
    """The group scores of rows, in double precision, where squares of float32 cannot overflow."""
    values, norm = rows.score.double(), rows.weight.abs().sum(1, dtype=torch.float64)
    lowest = torch.finfo(rows.score.dtype).min
    gone = (values == -torch.inf).all(1)
    order_only = (values <= lowest) | (rows.weight == 0)
    if rows.dead is not None:
        order_only |= rows.dead & (values < 0)
    if score == "l1":
        return Ranked(norm.masked_fill(gone, -torch.inf), norm)
    values = values.masked_fill(order_only, 0.0)  # a copy: the scores are the caller's
    joint = values.mean(1) if score == "mean" else values.clamp_(min=0.0).square_().sum(1)
    # A group without any number ranks below the others, whose scores may be negative; what is pruned, lowest.
    joint = joint.masked_fill_(order_only.all(1), lowest)
    return Ranked(joint.masked_fill_(gone, -torch.inf), norm)


def _whole_groups(keep: Count, size: int, groups: int) -> Count:
    """How many groups come nearest to `keep` weights; at least one, unless none is asked for."""
    if isinstance(keep, Tensor):
        return (keep.double() / size).round().long().maximum((keep > 0).long()).clamp(max=groups)
    return min(max(round(keep / size), int(keep > 0)), groups)


def _rest(tensor: Tensor, keep: Count) -> Count:
    """How many go where `keep` stay, of a tensor or of each of its rows."""
    return (as_rows(tensor).shape[1] if isinstance(keep, Tensor) else tensor.numel()) - keep


def _matrix(tensor: Tensor) -> Tensor:
    """A tensor with at least two dimensions: a vector becomes one row."""
    return tensor if tensor.dim() > 1 else as_rows(tensor)


def _matrix_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) if len(shape) > 1 else (1, math.prod(shape))


# ---- errors ------------------------------------------------------------------------------------------------------


def _check_dim(pattern: Pattern, dim: int, shape: Sequence[int]) -> None:
    if dim >= len(_matrix_shape(shape)):
        raise ValueError(
            f"shape {tuple(shape)}: {pattern!r} groups along dimension {dim}, which is not there: "
            "ignore this tensor, or choose another dim"
        )


def _check_divides(
    pattern: Pattern, what: str, length: int, field: str, by: int, shape: Sequence[int], others: str = ""
) -> None:
    if length % by:
        vector = " (a vector is one row)" if len(shape) < 2 else ""
        raise ValueError(
            f"shape {tuple(shape)}{vector}: {pattern!r} needs {what} to be a multiple of {by}, and it is {length}: "
            f"ignore this tensor, or choose another {field}{others}"
        )


def _across_rows(pattern: Pattern, instead: str) -> str:
    return f"{pattern!r} takes weights of several rows together, and the counts are by row: {instead}, or scope='layer'"
