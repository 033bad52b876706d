"""Sigma from the mean squared gradient that RMSprop and Adam keep anyway."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import Estimate, Online, State, Weights
from prunewald.core.weights import Weight, lower_median
from prunewald.model.optimizers import mean_square_gradient, mean_square_state, step_taken
from prunewald.util.arguments import real, whole
from prunewald.util.registry import uncertainty
from prunewald.util.tensors import accumulator, capturing, dense


@uncertainty("second-moment")
@dataclass(frozen=True)
class SecondMoment(Online):
    """sigma proportional to 1 / sqrt(v), v the mean squared gradient: the diagonal-Fisher standard error, free of cost.

    Scale-free by default: sigma is rescaled so that its median over a layer's living weights is the layer's spread,
    which makes lambda* = 1 a fair balance. With `samples` (size of the training set) and `batch_size` (effective, over
    accumulation and ranks) it is the standard error 1 / sqrt(samples · batch_size · v) itself. Where the optimizer
    keeps no mean square of each weight's gradient (SGD keeps none; that of SOAP, GaLore, NovoGrad, Adafactor or an
    8-bit Adam is rotated, projected, one number a layer, factored or quantised), the estimator runs an average of its
    own with the given `decay`, from attaching on, of `every` so many steps one.
    """

    samples: int | None = None
    batch_size: int | None = None
    decay: float = 0.99
    every: int = 1

    def __post_init__(self) -> None:
        if (self.samples is None) != (self.batch_size is None):
            raise ValueError(
                f"samples={self.samples!r} and batch_size={self.batch_size!r}: give both for standard errors, "
                "or neither for the scale-free sigma"
            )
        if self.samples is not None:
            whole("samples", self.samples, 1)
            whole("batch_size", self.batch_size, 1)
        real("decay", self.decay, above=0, below=1)
        whole("every", self.every, 1)

    @property
    def unscaled(self) -> "SecondMoment":
        """1 / sqrt(v) itself in the place of the scale-free form, which is scaled tensor by tensor."""
        return self if self.samples is not None else replace(self, samples=1, batch_size=1)

    @property
    def standard_error(self) -> bool:
        """Whether sigma is a standard error: the scale-free form is not."""
        return self.samples is not None

    def init(self, weights: Weights) -> State:
        """No average yet."""
        return {"steps": 0, "average": {}} | ({"calls": 0} if self.every > 1 else {})

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Average the squared gradients of the weights the optimizer keeps no average for."""
        if self.every > 1:
            state["calls"] += 1
            if state["calls"] % self.every != 1 or capturing():
                return
        own = {n: w for n, w in weights.items() if isinstance(mean_square_state(optimizer, w, stepped=True), str)}
        if not own:
            return
        took = step_taken(optimizer)
        state["steps"] = state["steps"] + (1 if took is None else took)
        for name, weight in own.items():
            average = state["average"].get(name)
            if average is None:
                average = torch.zeros_like(weight, dtype=accumulator(weight))
            state["average"][name] = self._averaged(average.to(weight.device), weight.grad, took)

    def _averaged(self, average: Tensor, grad: Tensor | None, took: Tensor | None) -> Tensor:
        new = average.mul_(self.decay) if took is None else average * self.decay
        if grad is not None:
            wide = dense(grad).to(average.dtype)
            new.addcmul_(wide, wide, value=1 - self.decay)
        return new if took is None else torch.where(took.bool(), new, average)

    def seen(self, state: State) -> dict[str, int]:
        """What it has an average of its own of."""
        return {name: int(state["steps"]) for name, average in state["average"].items() if average.any()}

    def check(self, state: State, weights: Weights) -> None:
        """Whether there is a second moment is seen tensor by tensor, when sigma is asked for."""

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """1 / sqrt(v), infinite (and dead) where v is 0."""
        v = mean_square_gradient(optimizer, weight.param)
        if v is None:
            v = self._own_average(state, weight, optimizer)
        v = v.to(weight.param.device)
        dead = v == 0
        sigma = v.rsqrt_()
        if self.samples is not None and self.batch_size is not None:
            return Estimate(sigma.div_((self.samples * self.batch_size) ** 0.5), dead)
        if weight.scale is None:
            # The median over the living weights becomes the layer's spread; one weight has none to be scaled to.
            living = sigma
            if weight.alive is not None or dead.any():
                living = sigma[~dead if weight.alive is None else weight.alive & ~dead]
            weight.scale = weight.spread / lower_median(living) if living.numel() > 1 else 1.0
        return Estimate(sigma.mul_(weight.scale), dead)

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """As for a single model, but each replica is scaled by its own weights."""
        if self.samples is not None:
            return self.sigma(state, weight, optimizer)
        error = replace(self, samples=1, batch_size=1).sigma(state, weight, optimizer)
        return Estimate(error.sigma * _row_scales(error, weight), error.dead)

    def _own_average(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Tensor:
        """The average that was run here, where the optimizer keeps none; in a tensor of its own."""
        average = state["average"].get(weight.name)
        if average is None or int(state["steps"]) == 0:
            raise ValueError(
                f"no second moment for {weight.name!r}: {mean_square_state(optimizer, weight.param)}, and no step was "
                "seen since the Pruner was attached or last pruned; attach it before training, or use "
                "criterion=Magnitude()"
            )
        corrected: Tensor = average / (1 - self.decay ** int(state["steps"]))
        return corrected


def _row_scales(error: Estimate, weight: Weight) -> Tensor:
    """What makes the median over each row's living weights that row's spread, in a shape that multiplies sigma."""
    assert error.dead is not None
    rows = len(error.sigma)
    sigma, value = error.sigma.reshape(rows, -1), weight.param.detach().reshape(rows, -1).double()
    living = torch.ones_like(value, dtype=torch.bool) if weight.alive is None else weight.alive.reshape(value.shape)
    moving = living & ~error.dead.reshape(value.shape)
    count = moving.sum(1, keepdim=True)
    median = sigma.where(moving, torch.inf).sort(1).values.gather(1, (count - 1).clamp(min=0) // 2)
    survivors = living.sum(1, keepdim=True)
    mean = value.where(living, 0).sum(1, keepdim=True) / survivors
    spread = ((value - mean).where(living, 0).square().sum(1, keepdim=True) / (survivors - 1)).sqrt()
    scale = torch.where(count < 2, 1.0, spread / median).to(sigma.dtype)
    return scale.reshape(rows, *[1] * (error.sigma.dim() - 1))
