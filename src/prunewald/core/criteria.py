"""How important is each weight? Higher is kept."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.weights import Group, WeightStats
from prunewald.util.registry import criterion


class Criterion(Protocol):
    """Scores the weights of one tensor. A class says by `uses_sigma` whether it needs one; a function will do too.

    One that needs more than the weight and its sigma names a `statistic`, which the Pruner runs for it.
    """

    def __call__(self, stats: WeightStats) -> Tensor:
        """One score a weight."""


class Statistic(Protocol):
    """A running statistic of every weight, shaped as an online estimator: all that changes is in the state.

    One of the inputs of modules also has `watch(model, names, state)`, which registers hooks and returns their handles;
    `state` is a function, since the state is another object after a pruning or a resume.
    """

    def init(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """The state before the first step, for the parameters of one optimizer."""

    def update_(self, state: dict[str, Any], weights: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        """Take in one optimizer step; called after it, with `.grad` still there."""

    def value(self, state: dict[str, Any], name: str) -> Tensor | None:
        """The statistic of one parameter; None before there is any."""


class Watching(Statistic, Protocol):
    """A statistic that watches the model itself."""

    def watch(self, model: nn.Module, names: list[str], state: Callable[[], dict[str, Any]]) -> list[Any]:
        """Register hooks that feed the state; returns their handles."""


def tau(weight: Tensor, sigma: Tensor, lam: float) -> Tensor:
    """|w| / (lam + sigma), with 0/0 = 0. Here `lam` is the paper's lambda itself, not lambda*.

    >>> tau(torch.tensor([3.0, -1.0, 0.0]), torch.tensor([0.5, 0.0, 0.0]), lam=0.5)
    tensor([3., 2., 0.])
    """
    if not lam >= 0:
        raise ValueError(f"lam must be at least 0, not {lam!r}")
    scores = weight.abs().div_(sigma + lam)
    return scores.masked_fill_(weight == 0, 0.0) if lam == 0 else scores


@criterion("magnitude")
@dataclass(frozen=True)
class Magnitude:
    """|w|.  Han et al. (2015); the paper's ABS."""

    uses_sigma: ClassVar[bool] = False

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by |w|."""
        return stats.weight.abs()


@criterion("magnitude-uncertainty")
@dataclass(frozen=True)
class MagnitudeUncertainty:
    """|w| / (lambda + sigma), lambda = lam · std(surviving weights of the layer).  Ko et al. (2019), eq. 9 and 10.

    `lam` is the paper's lambda*; `relative_to` says whose spread it multiplies: the layer's, that of the selected
    part, that of all targets ("model"), or None for an absolute lambda. Weights that no gradient reached are pruned
    first, as a Wald test would (their standard error is infinite); `dead="formula"` leaves them to the paper's
    formula, which keeps them whenever lambda is small.
    """

    lam: float = 1.0
    relative_to: Group | None = "layer"
    dead: Literal["first", "formula"] = "first"
    uses_sigma: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lam) and self.lam >= 0):
            raise ValueError(f"lam must be a finite number of at least 0, not {self.lam!r}")
        _check_choice("relative_to", self.relative_to, ("layer", "model", "part", None))
        _check_choice("dead", self.dead, ("first", "formula"))

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by tau."""
        spread = 1.0 if self.relative_to is None or self.lam == 0 else stats.spread(self.relative_to)
        scores = tau(stats.weight, stats.require_sigma(), self.lam * spread)
        return scores if self.dead == "formula" else stats.dead_first(scores)


@criterion("wald")
@dataclass(frozen=True)
class Wald:
    """|w| / sigma: the Wald statistic, and magnitude-uncertainty with lambda = 0."""

    dead: Literal["first", "formula"] = "first"
    uses_sigma: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_choice("dead", self.dead, ("first", "formula"))

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by |z|."""
        return MagnitudeUncertainty(lam=0.0, dead=self.dead)(stats)


@criterion("random")
@dataclass(frozen=True)
class Random:
    """A fixed random order: the floor that every criterion must beat."""

    seed: int = 0
    uses_sigma: ClassVar[bool] = False

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by chance, the same on every run and device."""
        # The name is part of the seed, so that a tensor's order does not depend on the others.
        generator = torch.Generator().manual_seed(crc32(f"{self.seed} {stats.name}".encode()))
        noise = torch.rand(stats.weight.shape, generator=generator, dtype=stats.weight.dtype)
        return noise.to(stats.weight.device)


def _check_choice(field: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{field} must be one of {', '.join(map(repr, known))}, not {value!r}")
