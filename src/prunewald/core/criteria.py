"""How important is each weight? Higher is kept."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal
from zlib import crc32

import torch
from torch import Tensor

from prunewald.core.base import Criterion
from prunewald.core.weights import Group, WeightStats
from prunewald.util.arguments import one_of, real
from prunewald.util.registry import criterion
from prunewald.util.tensors import count_true, in_pieces


def tau(weight: Tensor, sigma: Tensor, lam: float) -> Tensor:
    """|w| / (lam + sigma), with 0/0 = 0. Here `lam` is the paper's lambda itself, not lambda*.

    With `lam` infinite tau is 0 everywhere, and what is left of it is its order: |w|.

    >>> tau(torch.tensor([3.0, -1.0, 0.0]), torch.tensor([0.5, 0.0, 0.0]), lam=0.5)
    tensor([3., 2., 0.])
    """
    if not lam >= 0:
        raise ValueError(f"lam={lam!r}: give a number of at least 0")
    if lam == math.inf:
        return weight.abs()
    scores = weight.abs().div_(sigma + lam)
    return scores.masked_fill_(weight == 0, 0.0) if lam == 0 else scores


def dead_first(scores: Tensor, weight: Tensor, dead: Tensor) -> Tensor:
    """The scores, with dead weights below all others and ordered by |w| among themselves.

    Non-negative floats are ordered as their bits are, so |w| mirrored at the largest float is exact: no two different
    weights become a tie.
    """
    return in_pieces(_dead_first, scores, weight, dead) if count_true(dead) else scores


def _dead_first(scores: Tensor, weight: Tensor, dead: Tensor) -> Tensor:
    magnitude = weight.abs().to(scores.dtype).contiguous()
    ints = {torch.float32: torch.int32, torch.float64: torch.int64}[magnitude.dtype]
    largest = magnitude.new_tensor(torch.finfo(magnitude.dtype).max).view(ints)
    below = largest.sub(magnitude.view(ints)).view(magnitude.dtype).neg_()
    return torch.where(dead, below, scores)


@criterion("magnitude", "abs")
@dataclass(frozen=True)
class Magnitude(Criterion):
    """|w|.  Han et al. (2015); the paper's ABS."""

    is_magnitude: ClassVar[bool] = True

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by |w|."""
        return in_pieces(torch.abs, stats.weight)


@criterion("magnitude-uncertainty", "m&u")
@dataclass(frozen=True)
class MagnitudeUncertainty(Criterion):
    """|w| / (lambda + sigma), lambda = lam · std(surviving weights of the layer).  Ko et al. (2019), eq. 9 and 10.

    `lam` is the paper's lambda*; `relative_to` says whose spread it multiplies: the layer's, that of the selected
    slice, of all targets, of all weights of the model ("model"), or None for an absolute lambda. Weights that no
    gradient reached are pruned first, as a Wald test would (their standard error is infinite); `dead="formula"` leaves
    them to the paper's formula, which keeps them whenever lambda is small. `lam=math.inf` is `Magnitude()`, the paper's
    ABS, which looks at neither sigma nor dead weights.
    """

    lam: float = 1.0
    relative_to: Group | None = "layer"
    dead: Literal["first", "formula"] = "first"
    uses_sigma: ClassVar[bool | None] = True

    def __post_init__(self) -> None:
        if self.lam != math.inf:
            real("lam", self.lam, least=0, what="a number (math.inf for magnitude)")
        one_of("relative_to", self.relative_to, ("layer", "model", "slice", "targets", None))
        one_of("dead", self.dead, ("first", "formula"))

    @property
    def simplest(self) -> Criterion:
        """Magnitude, where lambda* is infinite."""
        return Magnitude() if self.lam == math.inf else self

    @property
    def unscaled(self) -> "MagnitudeUncertainty":
        """With one lambda for all tensors, from the spread of all targets."""
        own = self.lam > 0 and self.relative_to in ("layer", "slice")
        return replace(self, relative_to="targets") if own else self

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by tau."""
        if self.lam == math.inf:
            return self.simplest(stats)
        if stats.sigma is None:
            raise ValueError(
                f"{stats.name!r} has no uncertainty, and this criterion needs one: "
                "give the Pruner an uncertainty, such as SecondMoment(), or use criterion=Magnitude()"
            )
        spread = 1.0 if self.relative_to is None or self.lam == 0 else stats.spread(self.relative_to)
        scores = in_pieces(partial(tau, lam=self.lam * spread), stats.weight, stats.sigma)
        return scores if self.dead == "formula" or stats.dead is None else dead_first(scores, stats.weight, stats.dead)


@criterion("wald")
@dataclass(frozen=True)
class Wald(Criterion):
    """|w| / sigma: the Wald statistic, and magnitude-uncertainty with lambda = 0."""

    dead: Literal["first", "formula"] = "first"
    uses_sigma: ClassVar[bool | None] = True

    def __post_init__(self) -> None:
        one_of("dead", self.dead, ("first", "formula"))

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by |z|."""
        return MagnitudeUncertainty(lam=0.0, dead=self.dead)(stats)


@criterion("random")
@dataclass(frozen=True)
class Random(Criterion):
    """A fixed random order: the floor that every criterion must beat."""

    seed: int = 0

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by chance, the same on every run and device."""
        # The name is part of the seed, so that a tensor's order does not depend on the others.
        generator = torch.Generator().manual_seed(crc32(f"{self.seed} {stats.name}".encode()))
        noise = torch.rand(stats.weight.shape, generator=generator, dtype=stats.weight.dtype, device="cpu")
        return noise.to(stats.weight.device)
