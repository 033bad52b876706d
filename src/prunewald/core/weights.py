"""What is known of the weights of a model when they are scored."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from prunewald.util.tensors import accumulator, below_zero, pieces

Group: TypeAlias = Literal["layer", "model", "slice"]


class NotYet(ValueError):
    """Nothing can be told of the weights now, but training on may help."""


class Weight:
    """A whole parameter that holds targets, as an estimator sees it during one pruning.

    What an estimator or a criterion needs of all its weights together is computed once, however often it is asked for:
    large models are gone through several times.
    """

    def __init__(self, name: str, param: Tensor, alive: Tensor | None, value: Tensor | None = None) -> None:
        self.name = name
        self.param = param
        self.alive = alive  # True where a weight is not pruned; None: nothing is
        self.value = param.detach() if value is None else value  # what is scored: the parameter, or an average of it
        self._known: dict[str, float] = {}

    @cached_property
    def spread(self) -> float:
        """The standard deviation of its surviving weights."""
        return spread([(self.param, self.alive)], repr(self.name))

    def once(self, what: str, compute: Callable[[], float]) -> float:
        """A number that is computed at the first time it is asked for."""
        if what not in self._known:
            self._known[what] = compute()
        return self._known[what]


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
        """The standard deviation of the surviving weights of the layer, of the slice, or of all targets."""
        return self.spread_of(group)

    def dead_first(self, scores: Tensor) -> Tensor:
        """The scores, with dead weights below all others and ordered by |w| among themselves."""
        if self.dead is None:
            return scores
        return torch.where(self.dead, below_zero(self.weight.abs().to(scores.dtype)), scores)


def spread(tensors: Iterable[tuple[Tensor, Tensor | None]], what: str) -> float:
    """The standard deviation (n - 1) of the surviving entries of tensors together; 0 for the last survivor of many.

    Each comes with its mask, or None where nothing is pruned. Means and squared deviations are taken piece by piece
    and merged in double precision, by Chan's formula.
    """
    size, count, mean, m2 = 0, 0, 0.0, 0.0
    for values, alive in tensors:
        size += values.numel()
        for piece, living in zip(pieces(values), repeat(None) if alive is None else pieces(alive), strict=False):
            x = piece if living is None else piece[living]
            if n := x.numel():
                variance, own = map(float, torch.var_mean(x.to(accumulator(x)), correction=0))
                total, delta = count + n, own - mean
                m2 += n * variance + delta * delta * count * n / total
                mean += delta * n / total
                count = total
    if size < 2:
        raise ValueError(
            f"lambda is relative to the spread of {what}, which has 1 weight, and a standard deviation needs two: "
            "use relative_to='model', or relative_to=None for an absolute lambda"
        )
    return math.sqrt(m2 / (count - 1)) if count > 1 else 0.0
