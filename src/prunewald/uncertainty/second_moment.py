"""Sigma from the mean squared gradient that RMSprop and Adam keep anyway."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import PATIENCE, Estimate, Online, State, Weights
from prunewald.core.kth import lower_median
from prunewald.core.weights import Weight, living_sigma
from prunewald.model.optimizers import couples_decay, mean_square_gradient, mean_square_state, step_taken
from prunewald.uncertainty.diagnosis import EACH_ALONE
from prunewald.uncertainty.likelihood import Loss, gain, likelihood
from prunewald.util.arguments import one_of, real, whole
from prunewald.util.registry import brief, uncertainty
from prunewald.util.tensors import accumulator, capturing, count_true, dense, pieces

_OUTPUTS = "how many outputs of one sample the mean is taken over: 1 for a single one, or if they are summed"
_VARIANCE = "the mean squared residual of the fit, such as F.mse_loss over the training data"


@uncertainty("second-moment", "moment")
@dataclass(frozen=True)
class SecondMoment(Online):
    """sigma proportional to 1 / sqrt(v), v the mean squared gradient: the diagonal-Fisher standard error, free of cost.

    Scale-free by default: sigma is rescaled so that its median over a layer's living weights is the layer's spread,
    which makes lambda* = 1 a fair balance. With `samples` (n, the size of the training set) and `batch_size` (S, over
    accumulation and ranks) it is 1 / sqrt(n S v), a score in the units of whatever was minimised.

    With `likelihood` too it is the standard error of a minimum of that loss, as if each weight were the only one:
    "cross_entropy", "binary_cross_entropy", "squared_error", "poisson", or torch's function or module that was trained
    with. What is undone is its `reduction`, "mean" (the default) or "sum" over a step's samples and outputs; `outputs`
    is how many of one sample a mean is taken over, 1 if the loss is summed over them (cross entropy has none to
    average). A squared error needs the `residual_variance`, the same for all outputs: on the training data, the mean
    squared residual. The loss must be all that was minimised; weight decay that goes by the gradient, as in Adam and
    RMSprop, is refused.

    Where the optimizer keeps no mean square of each weight's gradient (SGD keeps none; that of SOAP, GaLore, NovoGrad,
    Adafactor or an 8-bit Adam is rotated, projected, one number a layer, factored or quantised), the estimator runs an
    average of its own with the given `decay`, from attaching on, of `every` so many steps one. Without a training,
    `pruner.observe(batches, loss)` makes that average from the gradients of data, one a batch.
    """

    samples: int | None = None
    batch_size: int | None = None
    decay: float = 0.99
    every: int = 1
    likelihood: Loss | None = None  # kept as its name
    reduction: str | None = None
    outputs: int | None = None
    residual_variance: float | None = None

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
        if self.likelihood is not None:
            self._know(self.likelihood)
        for name in ("reduction", "outputs", "residual_variance") if self.likelihood is None else ():
            if getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r} says how a likelihood was trained: give likelihood=")

    def _know(self, loss: Loss) -> None:
        """Keep a loss as its name and its reduction, after a check that nothing is missing and nothing too much."""
        if self.samples is None:
            raise ValueError(f"likelihood={loss!r} makes standard errors: give samples= and batch_size= too")
        kind, own = likelihood(loss, ("mean", "sum")), getattr(loss, "reduction", None)
        reduction = self.reduction or own or "mean"
        one_of("reduction", reduction, ("mean", "sum") if own is None else (own,))
        averages = reduction == "mean" and kind != "cross_entropy"
        _check_given("outputs", self.outputs, averages, kind, reduction, _OUTPUTS)
        _check_given("residual_variance", self.residual_variance, kind == "squared_error", kind, reduction, _VARIANCE)
        if self.outputs is not None:
            whole("outputs", self.outputs, 1)
        if self.residual_variance is not None:
            real("residual_variance", self.residual_variance, above=0)
        object.__setattr__(self, "likelihood", kind)  # plain, as fields are, so that it can be printed and saved
        object.__setattr__(self, "reduction", reduction)

    @property
    def unscaled(self) -> "SecondMoment":
        """1 / sqrt(v) itself in the place of the scale-free form, which is scaled tensor by tensor."""
        return self if self.samples is not None else replace(self, samples=1, batch_size=1)

    @property
    def standard_error(self) -> bool:
        """Whether sigma is a standard error: only where the loss that was minimised is known."""
        return self.likelihood is not None

    def caveats(self) -> list[str]:
        """That each weight is tested as if alone; without the loss it is no standard error, and nothing is tested."""
        if self.standard_error:
            return [EACH_ALONE]
        own, missing = "a sigma without a unit", "samples=, batch_size= and "
        if self.samples is not None:
            own, missing = "sigma in the units of a loss that it does not know", ""
        raise ValueError(
            f"alpha= and fdr= test weights by standard errors, and {brief(self)} has {own}: give {missing}likelihood=, "
            "as 'cross_entropy' or the loss itself, such as nn.MSELoss(); prune(sparsity) needs only the order"
        )

    def init(self, weights: Weights) -> State:
        """No average yet."""
        return {"steps": {}, "average": {}} | ({"calls": 0} if self.every > 1 else {})

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Average the squared gradients of the weights the optimizer keeps no average for."""
        if self.every > 1:
            state["calls"] += 1
            if state["calls"] % self.every != 1 or capturing():
                return
        own = {n: w for n, w in weights.items() if isinstance(mean_square_state(optimizer, w, stepped=True), str)}
        if not own:
            return
        took, steps = step_taken(optimizer), state["steps"]
        for name, weight in own.items():
            average = state["average"].get(name)
            if average is None and weight.grad is None:
                continue  # frozen until now: its average begins with its first gradient
            steps[name] = steps.get(name, 0) + (1 if took is None else took)
            if average is None:
                average = torch.zeros_like(weight, dtype=accumulator(weight))
            state["average"][name] = self._averaged(average.to(weight.device), weight.grad, took)

    def look_(self, state: State, weights: Weights, grads: Weights, optimizer: Optimizer | None) -> bool:
        """Average the squared gradients of a batch; not for standard errors, which are of steps of one batch size."""
        if self.samples is not None:
            return False
        own = [n for n in grads if n in weights and isinstance(mean_square_state(optimizer, weights[n]), str)]
        for name in own:
            average = state["average"].get(name)
            if average is None:
                average = torch.zeros_like(weights[name], dtype=accumulator(weights[name]), requires_grad=False)
            state["average"][name] = self._averaged(average, grads[name], None)
            state["steps"][name] = state["steps"].get(name, 0) + 1
        return bool(own)

    def resumed(self, saved: State, weights: Weights) -> State:
        """With steps counted by parameter: earlier states have one count for all."""
        steps = saved["steps"]
        return saved if isinstance(steps, dict) else saved | {"steps": dict.fromkeys(saved["average"], steps)}

    def _averaged(self, average: Tensor, grad: Tensor | None, took: Tensor | None) -> Tensor:
        new = average.mul_(self.decay) if took is None else average * self.decay
        if grad is not None:
            wide = dense(grad).to(average.dtype)
            new.addcmul_(wide, wide, value=1 - self.decay)
        return new if took is None else torch.where(took.bool(), new, average)

    @property
    def patience(self) -> int:
        """At least a pass over the training set, where its size is known."""
        known = self.samples is not None and self.batch_size is not None
        return max(PATIENCE, -(-self.samples // self.batch_size)) if known else PATIENCE  # type: ignore[operator]

    def blind(self, state: State, weight: Weight, optimizer: Optimizer | None) -> str:
        """A mean square of gradients that decay was added to, or of few steps, does not tell what the data reach."""
        kept = mean_square_state(optimizer, weight.param)
        if not isinstance(kept, str) and couples_decay(optimizer, kept.group):
            return f"{type(optimizer).__name__} adds its weight decay to the gradient"
        steps = int(state["steps"].get(weight.name, 0) if isinstance(kept, str) else kept.steps)
        needed = self.patience
        return "" if steps >= needed else f"{steps:,} of {needed:,} steps are in the second moment"

    def seen(self, state: State) -> dict[str, int]:
        """What it has an average of its own of."""
        return {name: int(state["steps"][name]) for name, average in state["average"].items() if average.any()}

    def check(self, state: State, weights: Weights) -> None:
        """Whether there is a second moment is seen tensor by tensor, when sigma is asked for."""

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """1 / sqrt(v), infinite where v is 0: that is dead, unless more is known."""
        v = mean_square_gradient(optimizer, weight.param)
        if v is None:
            v = self._own_average(state, weight, optimizer)
        v = v.to(weight.param.device)
        full = v.numel() > 0 and bool(v.min() > 0)  # every weight has a square
        # Where none is dead, one value tells so.
        own = v.new_zeros((), dtype=torch.bool).expand(v.shape) if full else v == 0
        dead = own if weight.dead is None else weight.dead
        sigma = v.rsqrt_()
        if self.samples is not None:
            self._check_undecayed(weight, optimizer)
            return Estimate(sigma.mul_(self._factor), dead)
        if weight.scale is None:
            # The median over the living weights becomes the layer's spread; one weight has none to be scaled to.
            living = partial(pieces, sigma)
            # What is reached may have no square yet, or too small a one.
            told = weight.alive is not None or (weight.dead is not None and count_true(dead) > 0)
            if told or not full or not bool(sigma.max() < torch.inf):
                living = partial(living_sigma, sigma, dead, weight.alive)
            middle = lower_median(living)
            weight.scale = 1.0 if middle is None else weight.spread / middle
        return Estimate(sigma.mul_(weight.scale), dead)

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """As for a single model, but each replica is scaled by its own weights."""
        if self.samples is not None:
            return self.sigma(state, weight, optimizer)
        error = replace(self, samples=1, batch_size=1).sigma(state, weight, optimizer)
        return Estimate(error.sigma * _row_scales(error, weight), error.dead)

    @property
    def _factor(self) -> float:
        """What 1 / sqrt(v) is multiplied by, v being the mean square of a step's gradient.

        That gradient is a mean, or a sum, over S samples of `gain` times the gradient of their log-likelihoods.
        """
        assert self.samples is not None
        assert self.batch_size is not None
        if self.likelihood is None:
            return float((self.samples * self.batch_size) ** -0.5)
        parts = gain(str(self.likelihood), self.outputs or 1) * (self.residual_variance or 1.0)
        size = 1 / self.batch_size if self.reduction == "mean" else self.batch_size
        return float(parts * (size / self.samples) ** 0.5)

    def _check_undecayed(self, weight: Weight, optimizer: Optimizer | None) -> None:
        """Refuse a standard error from squares that hold a penalty."""
        kept = mean_square_state(optimizer, weight.param)
        if self.likelihood is not None and not isinstance(kept, str) and couples_decay(optimizer, kept.group):
            decay = kept.group["weight_decay"]
            raise ValueError(
                f"{type(optimizer).__name__} adds weight_decay={decay!r} of {weight.name!r} to the gradient whose mean "
                "square it keeps: that makes no standard error; train with weight_decay=0, or with AdamW; or leave "
                "out likelihood=, for a sigma to prune(sparsity) by"
            )

    def _own_average(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Tensor:
        """The average that was run here, where the optimizer keeps none; in a tensor of its own."""
        average = state["average"].get(weight.name)
        steps = int(state["steps"].get(weight.name, 0))
        if average is None or steps == 0:
            raise ValueError(
                f"no second moment for {weight.name!r}: {mean_square_state(optimizer, weight.param)}, and no step was "
                "seen since the Pruner was attached or last pruned; attach it before training, or use "
                "criterion=Magnitude()"
            )
        corrected: Tensor = average / (1 - self.decay**steps)
        return corrected


def _check_given(name: str, value: object, needed: bool, kind: str, reduction: str, what: str) -> None:
    """Refuse what is missing, and what plays no part."""
    if needed and value is None:
        raise ValueError(f"likelihood={kind!r}, reduction={reduction!r}: give {name}=, {what}")
    if value is not None and not needed:
        raise ValueError(
            f"{name}={value!r} plays no part in likelihood={kind!r}, reduction={reduction!r}: leave it out"
        )


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
