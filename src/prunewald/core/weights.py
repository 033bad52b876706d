"""What is known of the weights of a model when they are scored."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from prunewald.util.tensors import accumulator, below_zero, pieces

Group: TypeAlias = Literal["layer", "model", "part"]


class NotYet(ValueError):
    """Nothing can be told of the weights now, but training on may help."""


@dataclass(frozen=True)
class Weight:
    """A whole parameter that holds targets, as an estimator sees it."""

    name: str
    param: Tensor
    alive: Tensor | None  # None: nothing is pruned yet
    memo: dict[str, float] = field(default_factory=dict, compare=False)  # what one pruning needs to compute only once

    @cached_property
    def spread(self) -> float:
        """The standard deviation of its surviving weights."""
        moments = Moments()
        moments.add(self.param, self.alive)
        return moments.std(repr(self.name))


@dataclass(frozen=True)
class WeightStats:
    """What is known of one tensor when it is scored."""

    name: str
    weight: Tensor
    alive: Tensor | None  # None: nothing is pruned yet
    sigma: Tensor | None
    dead: Tensor | None  # True where no gradient arrived; None: unknown
    spread_of: Callable[[Group], float]
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

    def require_sigma(self) -> Tensor:
        """Sigma, or an error that says how to get one."""
        if self.sigma is None:
            raise ValueError(
                f"{self.name!r} has no uncertainty, and this criterion needs one: "
                "give the Pruner an uncertainty, such as SecondMoment(), or use criterion=Magnitude()"
            )
        return self.sigma

    def spread(self, group: Group = "layer") -> float:
        """The standard deviation of the surviving weights of the layer, of the part, or of all targets."""
        return self.spread_of(group)

    def dead_first(self, scores: Tensor) -> Tensor:
        """The scores, with dead weights below all others and ordered by |w| among themselves."""
        if self.dead is None:
            return scores
        return torch.where(self.dead, below_zero(self.weight.abs().to(scores.dtype)), scores)


class Moments:
    """Count, mean and sum of squared deviations of many tensors, merged in double precision."""

    def __init__(self) -> None:
        self.size, self.count, self.mean, self.m2 = 0, 0, 0.0, 0.0

    def add(self, values: Tensor, alive: Tensor | None) -> None:
        """Take in the surviving entries of a tensor (Chan's formula)."""
        self.size += values.numel()
        for piece, living in zip(pieces(values), repeat(None) if alive is None else pieces(alive), strict=False):
            x = piece if living is None else piece[living]
            if n := x.numel():
                variance, mean = map(float, torch.var_mean(x.to(accumulator(x)), correction=0))
                m2 = n * variance
                total, delta = self.count + n, mean - self.mean
                self.m2 += m2 + delta * delta * self.count * n / total
                self.mean += delta * n / total
                self.count = total

    def std(self, what: str) -> float:
        """The standard deviation, with n - 1; 0 for the last survivor of many."""
        if self.size < 2:
            raise ValueError(
                f"lambda is relative to the spread of {what}, which has 1 weight, and a standard deviation needs two: "
                "use relative_to='model', or relative_to=None for an absolute lambda"
            )
        return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else 0.0
