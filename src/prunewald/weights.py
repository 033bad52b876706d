"""One prunable tensor: a part of a parameter, and what is known of it when it is scored."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Index: TypeAlias = Any  # whatever a tensor can be indexed with: int, slice, a tuple of them, a bool tensor
Group: TypeAlias = Literal["layer", "model", "part"]


class NotYet(ValueError):
    """Nothing can be told of the weights now, but training on may help."""


@dataclass(frozen=True)
class Part:
    """A named piece of one parameter, scored and pruned as one tensor: all of it, or a slice."""

    name: str  # "fc1.weight", or "conv1.weight[2]"
    param: str
    index: Index = None

    def take(self, tensor: Tensor) -> Tensor:
        """This part of a tensor shaped like the parameter."""
        return tensor if self.index is None else tensor[self.index]

    def put_(self, tensor: Tensor, values: Tensor) -> None:
        """Write this part of a tensor shaped like the parameter."""
        tensor[... if self.index is None else self.index] = values


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
    frozen: Tensor | None  # True where no gradient arrived; None: unknown
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

    def frozen_first(self, scores: Tensor) -> Tensor:
        """The scores, with frozen weights below all others and ordered by |w| among themselves."""
        if self.frozen is None:
            return scores
        return torch.where(self.frozen, below_zero(self.weight.abs().to(scores.dtype)), scores)


def below_zero(magnitude: Tensor) -> Tensor:
    """Map non-negative numbers to non-positive ones, strictly increasing: no two different inputs become a tie."""
    ints = {torch.float32: torch.int32, torch.float64: torch.int64}[magnitude.dtype]
    # Non-negative floats are ordered as their bits are, so mirroring the bits at the largest one is exact.
    largest = torch.tensor(torch.finfo(magnitude.dtype).max, dtype=magnitude.dtype).view(ints)
    return largest.to(magnitude.device).sub(magnitude.contiguous().view(ints)).view(magnitude.dtype).neg()


def zero_(tensor: Tensor, alive: Tensor) -> None:
    """Set a tensor to zero where it is not alive."""
    # As a product of the bits: +0.0 even from -1 or NaN, and several times faster than masked_fill_.
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    tensor.detach().view(bits).mul_(alive)


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


def pieces(tensor: Tensor, size: int = 1 << 20) -> Iterator[Tensor]:
    """Flat pieces of at most `size` elements, in order of position; views wherever the tensor is contiguous."""
    return iter(tensor.detach().reshape(-1).split(size))


def dense(grad: Tensor) -> Tensor:
    """A gradient with all its entries: those of embeddings may be sparse."""
    return grad.to_dense() if grad.is_sparse else grad


def accumulator(tensor: Tensor) -> torch.dtype:
    """The type to compute in: at least float32, since bf16 and fp16 cannot hold a sum of small differences."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
