"""Baselines that score by gradients: those of a batch, or of the optimizer steps since the Pruner was attached."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import Criterion, State, Statistic, Weights
from prunewald.core.weights import WeightStats
from prunewald.model.optimizers import step_taken
from prunewald.util.arguments import real
from prunewald.util.registry import criterion
from prunewald.util.tensors import accumulator, dense


def _gradients(state: State, weights: Weights, optimizer: Optimizer | None) -> Iterator[tuple[str, Tensor]]:
    """Count a step, and go through its gradients; each is zero where there is none or where the step was skipped."""
    took = step_taken(optimizer)
    state["steps"] = state["steps"] + (1 if took is None else took)
    for name, weight in weights.items():
        if weight.grad is None:
            yield name, torch.zeros_like(weight, dtype=accumulator(weight), requires_grad=False)
            continue
        grad = dense(weight.grad.detach()).to(accumulator(weight))
        # No product with 0 or 1: what makes GradScaler skip a step is an infinite gradient.
        yield name, grad if took is None else torch.where(took.to(grad.device).bool(), grad, 0.0)


def _products(state: State, weights: Weights, optimizer: Optimizer | None) -> Iterator[tuple[str, Tensor]]:
    """Weight times gradient, where both are of the same forward pass: the weight as it was before the step.

    That is the parameter itself, even where the optimizer keeps it in full precision too: the gradient was taken there.
    """
    before: dict[str, Tensor] = state["before"]
    for name, gradient in _gradients(state, weights, optimizer):
        before[name] = before[name].to(gradient.device)  # the model may have been moved
        yield name, gradient * before[name]
        before[name].copy_(weights[name].detach())


def with_grads(weights: Weights, grads: Weights) -> dict[str, Tensor]:
    """The weights with these gradients, while those that they have are left alone."""
    found = {name: weight.detach() for name, weight in weights.items()}
    for name, weight in found.items():
        weight.grad = grads.get(name)
    return found


def _copies(weights: Weights) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}


def _without_copies(state: State, weights: Weights) -> State:
    """A state for a checkpoint: copies that are the weights themselves are left out."""
    before = state["before"]
    same = all(torch.equal(before[name].to(weight.device), weight.detach()) for name, weight in weights.items())
    return state | {"before": {}} if same else state


def _with_copies(saved: State, weights: Weights) -> State:
    """A state to go on with: copies that were left out are the weights, or what is loaded into them next."""
    if saved["before"]:
        return saved
    before = _copies(weights)
    for name, weight in weights.items():
        _renew_at_backward(before, name, weight)
    return saved | {"before": before}


def _renew_at_backward(before: dict[str, Tensor], name: str, weight: Tensor) -> None:
    """Copy a weight again when its next gradient comes, once: a model's state may be loaded after its Pruner's."""

    def renew(param: Tensor) -> None:
        before[name] = param.detach().clone()
        handle.remove()

    if weight.requires_grad:
        handle = weight.register_post_accumulate_grad_hook(renew)


def _running(table: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """The entry of one parameter, on the device where it is now; zeros at first."""
    table[name] = table[name].to(like.device) if name in table else torch.zeros_like(like)
    return table[name]


def _seen(state: State, table: str, name: str) -> bool:
    """Whether any step went into the entry of a parameter."""
    return name in state[table] and int(state["steps"]) > 0


@dataclass(frozen=True)
class MeanGradient(Statistic):
    """The mean over the steps of g, or of g² if `squared`: one float32 a weight, from the first step on."""

    squared: bool = False

    def init(self, weights: Weights) -> State:
        """No step yet."""
        return {"steps": 0, "sum": {}}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Add the gradients of one step."""
        for name, gradient in _gradients(state, weights, optimizer):
            total = _running(state["sum"], name, gradient)
            total.add_(gradient.square() if self.squared else gradient)

    def look_(self, state: State, weights: Weights, grads: Weights, optimizer: Optimizer | None) -> bool:
        """As a step that moves nothing."""
        self.update_(state, with_grads(weights, grads), None)
        return True

    def value(self, state: State, name: str) -> Tensor | None:
        """The mean over all steps; None before the first."""
        return state["sum"][name] / int(state["steps"]) if _seen(state, "sum", name) else None


@dataclass(frozen=True)
class TotalMovement(Statistic):
    """-Σ w·g over the steps: one float32 a weight, and a copy of the weights as they were before the step."""

    def init(self, weights: Weights) -> State:
        """The weights before the first step."""
        return {"steps": 0, "before": _copies(weights), "sum": {}}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Add the products of one step."""
        for name, product in _products(state, weights, optimizer):
            _running(state["sum"], name, product).add_(product)

    def look_(self, state: State, weights: Weights, grads: Weights, optimizer: Optimizer | None) -> bool:
        """As a step that moves nothing."""
        self.update_(state, with_grads(weights, grads), None)
        return True

    def value(self, state: State, name: str) -> Tensor | None:
        """Positive where a weight was, all in all, drawn away from zero."""
        return -state["sum"][name] if _seen(state, "sum", name) else None

    def saved(self, state: State, weights: Weights) -> State:
        """All but the copies of the weights, where these are as they were after the last step."""
        return _without_copies(state, weights)

    def resumed(self, saved: State, weights: Weights) -> State:
        """With copies of the weights again."""
        return _with_copies(saved, weights)


@dataclass(frozen=True)
class SmoothedSensitivity(Statistic):
    """Ī·Ū of PLATON: two float32 a weight, and a copy of the weights as they were before the step."""

    beta1: float
    beta2: float

    def init(self, weights: Weights) -> State:
        """The weights before the first step."""
        return {"steps": 0, "before": _copies(weights), "mean": {}, "uncertainty": {}}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Move both averages on by one step."""
        took = step_taken(optimizer)
        for name, product in _products(state, weights, optimizer):
            importance = product.abs_()
            mean = _drawn_(state["mean"], name, importance, self.beta1, took)
            _drawn_(state["uncertainty"], name, importance.sub_(mean).abs_(), self.beta2, took)

    def look_(self, state: State, weights: Weights, grads: Weights, optimizer: Optimizer | None) -> bool:
        """As a step that moves nothing."""
        self.update_(state, with_grads(weights, grads), None)
        return True

    def value(self, state: State, name: str) -> Tensor | None:
        """The product of both averages; None before the first step."""
        if not _seen(state, "mean", name):
            return None
        product: Tensor = state["mean"][name] * state["uncertainty"][name]
        return product

    def saved(self, state: State, weights: Weights) -> State:
        """All but the copies of the weights, where these are as they were after the last step."""
        return _without_copies(state, weights)

    def resumed(self, saved: State, weights: Weights) -> State:
        """With copies of the weights again."""
        return _with_copies(saved, weights)


def _drawn_(table: dict[str, Tensor], name: str, new: Tensor, beta: float, took: Tensor | None) -> Tensor:
    """An exponential average moved on by one step; left as it was where the step was skipped."""
    return _running(table, name, new).lerp_(new, 1 - beta if took is None else took.to(new) * (1 - beta))


def _effect(weight: Tensor, gradient: Tensor) -> Tensor:
    """|w·g|: how much the loss would change, to first order, without a weight."""
    return (weight * gradient).abs_()


@criterion("taylor")
@dataclass(frozen=True)
class Taylor(Criterion):
    """|w·g|, g the mean gradient over the steps watched.  Molchanov et al. (2017), for single weights.

    Before the first step g is the present gradient, so `loss.backward(); pruner.prune(0.9)` works too.
    """

    @property
    def statistic(self) -> Statistic:
        """The mean gradient."""
        return MeanGradient()

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by the first-order change of the loss."""
        return _effect(stats.weight, stats.require_gradient() if stats.statistic is None else stats.statistic)


@criterion("snip")
@dataclass(frozen=True)
class SNIP(Criterion):
    """|w·g|, g the present gradient: call loss.backward() on a batch before prune().  Lee et al. (2019).

    After `pruner.observe(batches, loss)` g is the mean gradient over these batches instead, until the next step.
    Meant for a model at initialisation and, as published, with scope="global". The paper divides by the sum over all
    weights, a constant that changes no order; it is left out.
    """

    uses_gradient: ClassVar[bool] = True

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by the sensitivity to the connection."""
        return _effect(stats.weight, stats.require_gradient())


@criterion("movement")
@dataclass(frozen=True)
class Movement(Criterion):
    """-Σ w·g over the steps, each w as it was before its step.  Sanh et al. (2020).

    Positive where gradient descent moved a weight away from zero. The paper's learning rate is a constant that changes
    no order; it is left out.
    """

    @property
    def statistic(self) -> Statistic:
        """The movement away from zero."""
        return TotalMovement()

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by the movement away from zero."""
        return stats.require_statistic()


@criterion("obd")
@dataclass(frozen=True)
class OBD(Criterion):
    """w²·h / 2, h the diagonal of the Hessian.  LeCun, Denker & Solla (1990).

    h is approximated by the empirical Fisher, the mean squared gradient over the steps watched. Those are gradients of
    batches, not of samples: near an optimum a batch-size-th of the Fisher, a constant that changes no order.
    """

    @property
    def statistic(self) -> Statistic:
        """The mean squared gradient."""
        return MeanGradient(squared=True)

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by the saliency."""
        return stats.weight.square() * stats.require_statistic() / 2


@criterion("platon")
@dataclass(frozen=True)
class PLATON(Criterion):
    """Ī·Ū, with I = |w·g| at each step, Ī ← β1·Ī + (1 - β1)·I, Ū ← β2·Ū + (1 - β2)·|I - Ī|.  Zhang et al. (2022).

    As published, with scope="global" and a schedule that prunes during training. w is as it was before the step, as in
    the paper; the authors' code takes it after the step, and averages I over windows of `deltaT` steps first.
    """

    beta1: float = 0.85
    beta2: float = 0.95

    def __post_init__(self) -> None:
        real("beta1", self.beta1, least=0, below=1)
        real("beta2", self.beta2, least=0, below=1)

    @property
    def statistic(self) -> Statistic:
        """The averages Ī and Ū, and their product."""
        return SmoothedSensitivity(self.beta1, self.beta2)

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by sensitivity times its uncertainty."""
        return stats.require_statistic()
