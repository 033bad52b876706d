"""Sigma from the mean squared gradient that RMSprop and Adam keep anyway."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.ranking import kth_smallest
from prunewald.core.weights import Weight
from prunewald.model.optimizers import is_factored, keeps_mean_square, mean_square_gradient, step_taken
from prunewald.uncertainty.base import Estimate, State
from prunewald.util.registry import uncertainty
from prunewald.util.tensors import accumulator, dense, pieces


@uncertainty("second-moment")
@dataclass(frozen=True)
class SecondMoment:
    """sigma proportional to 1 / sqrt(v), v the mean squared gradient: the diagonal-Fisher standard error, free of cost.

    Scale-free by default: sigma is rescaled so that its median over a layer's living weights is the layer's spread,
    which makes lambda* = 1 a fair balance. With `samples` (size of the training set) and `batch_size` (effective, over
    accumulation and ranks) it is the standard error 1 / sqrt(samples · batch_size · v) itself. Where the optimizer
    keeps no second moment (SGD), the estimator runs an average of its own with the given `decay`, from attaching on.
    """

    samples: int | None = None
    batch_size: int | None = None
    decay: float = 0.99

    def __post_init__(self) -> None:
        if (self.samples is None) != (self.batch_size is None):
            raise ValueError(
                f"samples={self.samples!r} and batch_size={self.batch_size!r}: give both for standard errors, "
                "or neither for the scale-free sigma"
            )
        if self.samples is not None and self.batch_size is not None and min(self.samples, self.batch_size) < 1:
            raise ValueError(f"samples={self.samples!r}, batch_size={self.batch_size!r}: both must be at least 1")
        if not 0 < self.decay < 1:
            raise ValueError(f"decay must lie between 0 and 1, not {self.decay!r}")

    @property
    def standard_error(self) -> bool:
        """Whether sigma is one: the scale-free form is not."""
        return self.samples is not None

    def init(self) -> State:
        """No average yet."""
        return {"steps": 0, "average": {}}

    def update_(self, state: State, weights: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        """Average the squared gradients of the weights the optimizer keeps no average for."""
        own = {n: w for n, w in weights.items() if not keeps_mean_square(optimizer, w)}
        if not own or any(is_factored(optimizer, w) for w in own.values()):
            return
        took = step_taken(optimizer)
        state["steps"] = state["steps"] + (1 if took is None else took)
        for name, weight in own.items():
            average = state["average"].get(name)
            if average is None:
                average = torch.zeros_like(weight, dtype=accumulator(weight))
            state["average"][name] = self._averaged(average.to(weight.device), weight.grad, took)

    def _averaged(self, average: Tensor, grad: Tensor | None, took: Tensor | None) -> Tensor:
        square = torch.zeros_like(average) if grad is None else dense(grad).to(average.dtype).square()
        new = average * self.decay + square * (1 - self.decay)
        return new if took is None else torch.where(took.bool(), new, average)

    def check(self, state: State) -> None:
        """Whether there is a second moment is seen tensor by tensor."""

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """1 / sqrt(v), infinite (and dead) where v is 0."""
        v = self._second_moment(state, weight, optimizer).to(weight.param.device)
        dead = v == 0
        sigma = v.rsqrt_()
        if self.samples is not None and self.batch_size is not None:
            return Estimate(sigma.div_((self.samples * self.batch_size) ** 0.5), dead)
        if "scale" not in weight.memo:
            weight.memo["scale"] = _scale(sigma, dead, weight)
        return Estimate(sigma.mul_(weight.memo["scale"]), dead)

    def _second_moment(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Tensor:
        """v, in a tensor of its own."""
        if is_factored(optimizer, weight.param):
            raise ValueError(
                f"{type(optimizer).__name__} keeps only row and column means of the second moment of {weight.name!r}, "
                "not one for each weight: use PseudoBootstrap(), or criterion=Magnitude()"
            )
        kept = mean_square_gradient(optimizer, weight.param)
        if kept is not None:
            return kept
        average = state["average"].get(weight.name)
        if average is None or int(state["steps"]) == 0:
            raise ValueError(
                f"no second moment for {weight.name!r}: {_describe(optimizer)}, and no step was seen since the Pruner "
                "was attached or last pruned; attach it before training, or use criterion=Magnitude()"
            )
        corrected: Tensor = average / (1 - self.decay ** int(state["steps"]))
        return corrected


def _scale(sigma: Tensor, dead: Tensor, weight: Weight) -> float:
    """What makes the median over living weights the layer's spread."""
    if weight.alive is not None or dead.any():
        sigma = sigma[~dead if weight.alive is None else weight.alive & ~dead]
    if sigma.numel() < 2:
        return 1.0  # one weight has no spread to be scaled to
    median, _, _ = kth_smallest(lambda: pieces(sigma), (sigma.numel() + 1) // 2)
    return weight.spread / float(median)


def _describe(optimizer: Optimizer | None) -> str:
    return "there is no optimizer" if optimizer is None else f"{type(optimizer).__name__} keeps none"
