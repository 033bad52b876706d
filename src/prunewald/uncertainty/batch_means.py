"""Standard errors online, by batch means of the SGD path."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import PATIENCE, Estimate, Online, State, Weights
from prunewald.core.weights import Weight
from prunewald.model.optimizers import master, step_taken
from prunewald.uncertainty.streaming import collect_, merged, new_block, shift_to_, unmoved
from prunewald.util.arguments import whole
from prunewald.util.notices import warn
from prunewald.util.registry import uncertainty

# Above this `Lengths.doubling` 95 % intervals cover less than 92 %, or little more: results/coverage/batch_means.csv.
_TOO_SHORT = 1.27
_TOO_EVEN = 0.8  # with replacement it is 1 or above; with shuffled epochs and batches of one or more, 0.5 to 0.8
_TOO_LARGE = 2.0  # above this `offset` 95 % intervals of a logistic regression cover less than 92 %, or little more
_AVERAGED = (
    "tested: the averaged iterate, which the standard errors are of; on a curved loss it is right for small steps only"
)


class Lengths(NamedTuple):
    """What tells whether the batches were long enough."""

    batches: int
    doubling: float  # variance of batches twice as long, times two, over that of the batches, mean over the weights:
    # 1 if batches are independent, 2 if the path has only just begun to forget where it was
    effective: float  # independent steps among all steps, by the median weight


@uncertainty("batch-means")
@dataclass(frozen=True)
class BatchMeans(Online):
    """SE² = (S / n + 1 / T) · V, of the *averaged* iterate over T steps; V is t · Var(m_r), m_r the mean of batch r.

    A batch is t = `length` steps; `samples` is n, the size of the training set, `batch_size` is S. The mean over T
    steps, of S T samples, wanders about the optimum of the training set with variance V / T; that optimum, made of n
    samples, lies about the true weights with variance S V / n by the same law. The sum is S V / n times 1 + n / (S T),
    which is 2 after one epoch. V is too small where neighbouring batches resemble each other, by as much as doubling t
    gains: lugsail batch means (Vats & Flegal 2022) add that gain, so V is V_t or, if larger, 2 V_2t - V_t.

    A standard error if the step size is constant, samples are drawn *with replacement* (in shuffled epochs the noise
    cancels, and sigma is several times too small), and t is long against the mixing time 1 / (step size · smallest
    curvature): `lengths` tells, and a warning comes where intervals cover too little. It cannot tell shuffled epochs by
    batches of a small part of one. On a curved loss the average of large steps is itself off the optimum: `offset` says
    how far that may be, with a warning too; halve the step size and see whether the average stays. Without `samples`
    and `batch_size` sigma is the plain deviation of the batch means. z is taken as t-distributed, with one degree of
    freedom less than there are batches.
    """

    samples: int | None = None
    batch_size: int | None = None
    length: int = 200

    def __post_init__(self) -> None:
        if (self.samples is None) != (self.batch_size is None):
            raise ValueError(f"samples={self.samples!r}, batch_size={self.batch_size!r}: give both, or neither")
        whole("length", self.length, 2)
        if self.samples is not None:
            whole("samples", self.samples, 1)
            whole("batch_size", self.batch_size, 1)

    @property
    def standard_error(self) -> bool:
        """Whether sigma is a standard error: without `samples` and `batch_size` it is the deviation of batch means."""
        return self.samples is not None

    def init(self, weights: Weights) -> State:
        """No batch yet."""
        tables = ("shift", "batch", "centre", "means", "within", "pair", "pairs")
        return {"step": 0, "length": self.length} | {table: {} for table in tables}

    def init_marked(self, weights: Weights) -> State:
        """Batches are marked with where a gradient arrived."""
        return {**self.init(weights), "marked": True}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Take in the weights after one step."""
        took = step_taken(optimizer)
        if took is not None and not int(took):
            return
        if state["length"] != self.length:  # batches of two lengths have no common variance
            raise ValueError(f"the state is of batches of {state['length']} steps: go on with those, not {self!r}")
        state["step"] += 1
        snapshot = {name: master(optimizer, weight) for name, weight in weights.items()}
        if not state["batch"]:
            if not state["shift"]:
                shift_to_(state["shift"], [], snapshot)
            state["batch"] = new_block(snapshot, marked=state.get("marked", False))
        grads = {name: weight.grad for name, weight in weights.items()}
        collect_(state["shift"], state["batch"], snapshot, grads, None, compiled=False)
        if state["batch"]["count"] == self.length:
            _close_(state)

    def check(self, state: State, weights: Weights) -> None:
        """Two batches are needed; few or short ones are a warning."""
        batches = state["means"]["count"] if state["means"] else 0
        if batches < 2:
            raise ValueError(f"{self!r} has {batches} batch(es) after {state['step']} steps, and needs two: train on")
        lengths = self.lengths(state)
        if batches < 10:
            warn(f"standard errors from {batches} batches only: their own error is large")
        elif lengths.doubling > _TOO_SHORT:
            warn(
                f"batches of {self.length} steps are too short: those twice as long vary {lengths.doubling:.2f} times "
                f"as much as independent ones would, so standard errors are too small; give length={2 * self.length} "
                "or more, and train for as many batches"
            )
        elif lengths.doubling < _TOO_EVEN:
            warn(
                f"batches of {self.length} steps make up for each other: those twice as long vary "
                f"{lengths.doubling:.2f} times as much as independent ones would, as in shuffled epochs, so standard "
                "errors are too small; draw samples with replacement, as RandomSampler(data, replacement=True) does"
            )
        elif (offset := self.offset(state)) > _TOO_LARGE:
            warn(
                f"weights swing so far that on a curved loss their average may be {offset:.1f} standard errors off the "
                "optimum: halve the step size and see whether the average stays (that of a linear model with squared "
                "errors does)"
            )

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The standard error of the averaged iterate."""
        batch = [state["batch"]] if state["batch"] else []
        dead = unmoved([state["means"], *batch], weight)
        return Estimate(self._squared(state, weight.name).sqrt_().to(weight.param.device), dead)

    def _squared(self, state: State, name: str) -> Tensor:
        """Sigma squared."""
        count, m2 = merged([state["means"]], name)
        variance = m2 / (count - 1)
        if self.samples is None or self.batch_size is None:
            return variance
        seen = self.batch_size * self.length / self.samples  # of the training set, in one batch
        return _lugsail(variance, state["pairs"], name) * (seen + 1 / count)

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """As for a single model, since a weight's error depends on that weight alone."""
        return self.sigma(state, weight, optimizer)

    @property
    def least(self) -> int:
        """Two full batches make a variance."""
        return 2 * self.length

    @property
    def patience(self) -> int:
        """At least a pass over the training set, where its size is known."""
        known = self.samples is not None and self.batch_size is not None
        return max(PATIENCE, -(-self.samples // self.batch_size)) if known else PATIENCE  # type: ignore[operator]

    def caveats(self) -> list[str]:
        """A Wald test is of the averaged iterate, not of the last one."""
        return [_AVERAGED] if self.standard_error else super().caveats()

    def degrees(self, state: State) -> float:
        """The degrees of freedom of z, which is t-distributed: one less than there are batches."""
        return float(state["means"]["count"] - 1)

    def average(self, state: State) -> dict[str, Tensor]:
        """The averaged iterate, over all full batches: what the standard errors are of."""
        return {n: state["shift"][n] + state["centre"][n] + mean for n, mean in state["means"]["mean"].items()}

    def lengths(self, state: State) -> Lengths:
        """Whether the batches of a state were long enough, by the weights that moved."""
        means, pairs = state["means"], state["pairs"]
        steps = means["count"] * self.length
        single, double, step = _variance(means), _variance(pairs), _of_steps(state)
        moving = single > 0
        effective = step[moving] * steps / (single[moving] * self.length)
        doubling = 2 * double[moving] / single[moving]
        return Lengths(means["count"], float(doubling.mean()), min(float(effective.median()), steps))

    def offset(self, state: State) -> float:
        """How far the average may be off the optimum of a curved loss because the steps are large, in standard errors.

        Weights w that swing by s about an optimum have an average that is off by about s² / |w|, if the curvature of
        the loss changes by itself where they change by themselves. The path does not tell whether it does. NaN for less
        than four batches, and where sigma is no standard error.
        """
        swing, free = _of_steps(state), self.degrees(state)
        if free <= 2 or not self.standard_error:
            return math.nan
        moving = swing > 0
        # Both in units of the swing, so that the units of no weight matter; t-distributed z vary more than normal ones.
        errors = _flat({name: self._squared(state, name) for name in state["within"]}) * free / (free - 2)
        sizes = _flat(self.average(state)).square()
        return float(((errors / swing)[moving].mean() * (sizes / swing)[moving].mean()) ** -0.5)


def _lugsail(variance: Tensor, pairs: State, name: str) -> Tensor:
    """The variance of batch means that are independent, from those that there are and those of twice their length."""
    if pairs["count"] < 2:
        return variance
    _, m2 = merged([pairs], name)
    twice = m2.to(variance.device) * (2 / (pairs["count"] - 1))
    return torch.maximum(2 * twice - variance, variance)


def _of_steps(state: State) -> Tensor:
    """The variance of single iterates: inside the batches, and that of their means."""
    steps: int = state["means"]["count"] * state["length"]
    return _flat(state["within"]) / steps + _variance(state["means"])


def _variance(block: State) -> Tensor:
    return _flat(block["m2"]) / max(int(block["count"]) - 1, 1)


def _flat(table: dict[str, Tensor]) -> Tensor:
    return torch.cat([values.reshape(-1) for values in table.values()])


def _close_(state: State) -> None:
    """Take the mean of a full batch into the variance of the means, and of every second one into that of pairs."""
    batch, state["batch"] = state["batch"], {}
    mean = batch["mean"]
    if not state["means"]:
        state["centre"] = {name: m.clone() for name, m in mean.items()}
        state["means"], state["pairs"] = new_block(mean, marked=bool(batch["moved"])), new_block(mean)
        state["within"] = {name: torch.zeros_like(m) for name, m in mean.items()}
    grads: dict[str, Tensor | None] = batch["moved"] or dict.fromkeys(mean)
    collect_(state["centre"], state["means"], mean, grads, None, compiled=False)
    for name, m2 in batch["m2"].items():
        state["within"][name] = m2 + state["within"][name].to(m2.device)  # the model may have been moved
    if state["pair"]:
        both = {name: (m + state["pair"][name].to(m.device)) / 2 for name, m in mean.items()}
        collect_(state["centre"], state["pairs"], both, dict.fromkeys(both), None, compiled=False)
    state["pair"] = {} if state["pair"] else mean
