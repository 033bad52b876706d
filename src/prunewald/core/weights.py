"""What is known of the weights of a model when they are scored."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from prunewald.util.tensors import CACHED, count_true, pieces, places

Group: TypeAlias = Literal["layer", "slice", "targets", "model"]
_PIECE = 1 << 20  # weights whose deviations are taken at once


class NotYet(ValueError):
    """Nothing can be told of the weights now, but training on may help."""


@dataclass(eq=False)
class Weight:
    """A whole parameter that holds targets, as an estimator sees it during one pruning.

    What is needed of all its weights together is computed once, however often a large model is gone through.
    """

    name: str
    param: Tensor
    alive: Tensor | None  # True where a weight is not pruned; None: nothing is
    average: Tensor | None = (
        None  # the weights that the standard errors are of, where these are not the parameter itself
    )
    dead: Tensor | None = None  # True where no gradient of the data arrived, as far as it was watched; None: unknown
    scale: float | None = None  # what an estimator multiplies sigma by, once it has found that

    @cached_property
    def spread(self) -> float:
        """The standard deviation of its surviving weights."""
        return spread([(self.param, self.alive)], repr(self.name))


@dataclass(frozen=True)
class WeightStats:
    """What is known of one tensor when it is scored."""

    name: str
    weight: Tensor
    alive: Tensor | None  # None: nothing is pruned yet
    sigma: Tensor | None
    dead: Tensor | None  # True where no gradient arrived; None: unknown
    spread: Callable[[Group], float]  # the standard deviation of the survivors of a layer, a slice, ...
    gradient: Tensor | None = None  # as the last backward pass left it
    statistic: Tensor | None = None  # what the criterion's own `statistic` gathered

    def require_gradient(self) -> Tensor:
        """The gradient, or an error that says how to get one."""
        if self.gradient is None:
            raise NotYet(
                f"{self.name!r} has no gradient, and this criterion needs one: call loss.backward() before prune()"
            )
        return self.gradient

    def require_statistic(self) -> Tensor:
        """The criterion's running statistic, or an error that says how to get one."""
        if self.statistic is None:
            raise NotYet(
                f"{self.name!r} has no statistic yet, and this criterion needs one: train a few steps, or run data "
                "through the model, after the Pruner is attached"
            )
        return self.statistic


def spread(tensors: Iterable[tuple[Tensor, Tensor | None]], what: str) -> float:
    """The standard deviation (n - 1) of the surviving entries of tensors together; 0 where only one survives.

    Each tensor comes with its mask, or None where nothing is pruned; `what` names them all in an error. Means and
    squared deviations are taken piece by piece and merged in double precision, by Chan's formula.
    """
    size, count, mean, m2 = 0, 0, 0.0, 0.0
    for values, alive in tensors:
        size += values.numel()
        masks = repeat(None) if alive is None else alive.reshape(-1).split(_PIECE)
        for piece, living in zip(values.detach().reshape(-1).split(_PIECE), masks, strict=False):
            x = piece if living is None else piece[living]
            if n := x.numel():
                wide = x if x.dtype == torch.float64 else x.float()
                large = wide.is_cpu and wide.dtype == torch.float32 and n > CACHED
                variance, own = _variance_mean(wide) if large else map(float, torch.var_mean(wide, correction=0))
                total, delta = count + n, own - mean
                m2 += n * variance + delta * delta * count * n / total
                mean += delta * n / total
                count = total
    if size < 2:
        raise ValueError(
            f"the spread of {what} is wanted, which has 1 weight, and a standard deviation needs two: for lambda use "
            "relative_to='model', or relative_to=None for an absolute one; leave it out of quality"
        )
    return math.sqrt(m2 / (count - 1)) if count > 1 else 0.0


def _variance_mean(x: Tensor) -> tuple[float, float]:
    """As torch.var_mean, which takes several times as long of many float32 on a CPU."""
    mean = math.fsum(float(piece.double().sum()) for piece in pieces(x)) / len(x)
    squares = math.fsum(float(piece.double().sub_(mean).square_().sum()) for piece in pieces(x))
    variance, own = torch.tensor([squares / len(x), mean], dtype=torch.float32, device="cpu").tolist()
    return variance, own


def living_sigma(sigma: Tensor, dead: Tensor | None, alive: Tensor | None) -> Iterator[Tensor]:
    """In flat pieces, each sigma that is finite, of weights that are neither dead nor pruned."""
    marks = [repeat(None) if mask is None else pieces(mask) for mask in (dead, alive)]
    for piece, gone, stays in zip(pieces(sigma), *marks, strict=False):
        moving = piece.abs() < torch.inf
        if gone is not None:
            moving.logical_and_(~gone)
        if stays is not None:
            moving.logical_and_(stays)
        yield piece if count_true(moving) == piece.numel() else piece[places(moving)]
