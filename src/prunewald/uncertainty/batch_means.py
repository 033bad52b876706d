"""Calibrated standard errors online, by batch means of the SGD path."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import Estimate, Online, State, Weights
from prunewald.core.weights import Weight
from prunewald.model.optimizers import master, step_taken
from prunewald.uncertainty.streaming import collect_, merged, new_block, shift_to_
from prunewald.util.arguments import whole
from prunewald.util.notices import warn
from prunewald.util.registry import uncertainty


class Lengths(NamedTuple):
    """What tells whether the batches were long enough."""

    batches: int
    doubling: float  # variance of batches twice as long, times two, over that of the batches: 1 if they are independent
    effective: float  # independent steps among all steps, by the median weight


@uncertainty("batch-means")
@dataclass(frozen=True)
class BatchMeans(Online):
    """SE² = (S t / n) · Var(m_r), m_r the mean of a weight over batch r of t steps: for the *averaged* iterate.

    A standard error if the step size is constant, samples are drawn *with replacement* (shuffled epochs make it 9-19
    times too small), and t is long against the mixing time 1 / (step size · smallest curvature): `lengths` tells.
    `samples` is n, the size of the training set, `batch_size` S; without them sigma is the deviation of batch means. z
    is t-distributed, with one degree of freedom less than there are batches.
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
            state["batch"] = new_block(snapshot)
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
        elif lengths.doubling > 1.5:
            warn(
                f"batches of {self.length} steps are too short: those twice as long vary {lengths.doubling:.1f} times "
                "as much as independent ones would, so standard errors are too small"
            )

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The standard error of the averaged iterate; dead where no gradient came."""
        count, m2, moved = merged([state["means"]], weight.name)
        if state["batch"]:
            moved = moved | state["batch"]["moved"][weight.name]
        size = (self.batch_size or 1) * self.length / (self.samples or self.length)
        return Estimate((m2 * (size / (count - 1))).sqrt_().to(weight.param.device), ~moved.to(weight.param.device))

    def sigma_rows(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """As for a single model, since a weight's error depends on that weight alone."""
        return self.sigma(state, weight, optimizer)

    @property
    def least(self) -> int:
        """Two full batches make a variance."""
        return 2 * self.length

    def caveats(self) -> list[str]:
        """A Wald test is of the averaged iterate, not of the last one."""
        averaged = ["tested: the averaged iterate, which the standard errors are of"]
        return averaged if self.standard_error else super().caveats()

    def degrees(self, state: State) -> float:
        """The degrees of freedom of z, which is t-distributed: one less than there are batches."""
        return float(state["means"]["count"] - 1)

    def average(self, state: State) -> dict[str, Tensor]:
        """The averaged iterate, over all full batches: what the standard errors are of."""
        return {n: state["shift"][n] + state["centre"][n] + mean for n, mean in state["means"]["mean"].items()}

    def lengths(self, state: State) -> Lengths:
        """Whether the batches of a state were long enough; medians over the weights that moved."""
        means, pairs = state["means"], state["pairs"]
        steps = means["count"] * self.length
        single, double = _variance(means), _variance(pairs)
        step = torch.cat([w.reshape(-1) for w in state["within"].values()]) / steps + single
        moving = single > 0
        effective = step[moving] * steps / (single[moving] * self.length)
        doubling = 2 * double[moving] / single[moving]
        return Lengths(means["count"], float(doubling.median()), min(float(effective.median()), steps))


def _variance(block: State) -> Tensor:
    flat = torch.cat([m2.reshape(-1) for m2 in block["m2"].values()])
    return flat / max(int(block["count"]) - 1, 1)


def _close_(state: State) -> None:
    """Take the mean of a full batch into the variance of the means, and of every second one into that of pairs."""
    batch, state["batch"] = state["batch"], {}
    mean = batch["mean"]
    if not state["means"]:
        state["centre"] = {name: m.clone() for name, m in mean.items()}
        state["means"], state["pairs"] = new_block(mean), new_block(mean)
        state["within"] = {name: torch.zeros_like(m) for name, m in mean.items()}
    collect_(state["centre"], state["means"], mean, batch["moved"], None, compiled=False)
    for name, m2 in batch["m2"].items():
        state["within"][name] += m2
    if state["pair"]:
        both = {name: (m + state["pair"][name]) / 2 for name, m in mean.items()}
        collect_(state["centre"], state["pairs"], both, dict.fromkeys(both), None, compiled=False)
    state["pair"] = {} if state["pair"] else mean
