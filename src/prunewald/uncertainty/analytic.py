"""Standard errors in closed form: inverse Fisher information, sandwich, and the asymptotic covariance of SGD itself.

The paper's eq. 7 writes SE = sqrt(V_jj), but by its eq. 5 V is the variance of sqrt(n) w: here SE = sqrt(V_jj / n).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.masking import Masks
from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.curvature import Problem, pose
from prunewald.uncertainty.diagnosis import BlockDiagnosis, Diagnosis, Sigmas
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.arguments import one_of, real
from prunewald.util.registry import uncertainty

Inverse = Literal["inverse", "pseudo", "damped"]
_FULL = 20_000  # parameters whose information matrix is held whole


class Spectrum(NamedTuple):
    """The eigenvalues of an information matrix, its eigenvectors, and which of them are more than rounding."""

    values: Tensor
    vectors: Tensor
    keep: Tensor

    def inverted(self, how: Inverse, damping: float = 0.0) -> Tensor:
        """The eigenvalues of the inverse that was asked for; NaN where there is no inverse."""
        if how == "damped":
            return 1 / (self.values + damping * self.values.mean())
        if how == "pseudo" or bool(self.keep.all()):
            return torch.where(self.keep, 1 / self.values, 0.0)
        return torch.full_like(self.values, torch.nan)


@dataclass(frozen=True)
class BlockMatrices:
    """One block of parameters: its information, the covariance of its scores, and what they were made from."""

    names: tuple[str, ...]
    information: Tensor  # the mean over samples, squared errors in units of their variance
    covariance: Tensor  # of the scores, in the same units
    mean: Tensor  # of the scores
    samples: int
    rounding: float  # of an entry of the information, relative to the largest

    def spectrum(self) -> Spectrum:
        """The information by eigenvalues."""
        values, vectors = torch.linalg.eigh(self.information)
        return Spectrum(values, vectors, values.abs() > values.abs().max() * len(values) * self.rounding)

    def z(self) -> Tensor:
        """The mean scores in units of their standard errors, where a score varies."""
        error = (self.covariance.diagonal() / self.samples).sqrt()
        return (self.mean / error)[error > 0]

    def diagnosed(self, spectrum: Spectrum, variance: Tensor) -> BlockDiagnosis:
        """How far this block can be believed: its rank and condition, negative variances, the mean score."""
        living = spectrum.values[spectrum.keep].abs()
        return BlockDiagnosis(
            params=self.names,
            size=len(variance),
            rank=len(living),
            condition=float(living.max() / living.min()) if len(living) == len(variance) else torch.inf,
            negative=int((variance < 0).sum()),
            score=float(self.z().square().mean().sqrt()),
        )


Variance = Callable[[BlockMatrices, Spectrum], Tensor]


def solve(problem: Problem, observed: bool, variance: Variance) -> Sigmas:
    """Standard errors of every parameter that takes gradients, NaN where there is none, with their diagnosis."""
    flat, diagnoses = [], []
    for block in by_block(problem, observed):
        spectrum = block.spectrum()
        found = variance(block, spectrum)
        diagnoses.append(block.diagnosed(spectrum, found))
        found = found.masked_fill(found < 0, torch.nan)
        # The data say nothing of a parameter without information: a pseudo-inverse would call it certain.
        flat.append(found.masked_fill(block.information.diagonal() == 0, torch.inf).sqrt())
    return _named(problem, torch.cat(flat), tuple(diagnoses))


def _named(problem: Problem, flat: Tensor, blocks: tuple[BlockDiagnosis, ...]) -> Sigmas:
    sigmas = Sigmas()
    values = iter(flat.split([int(alive.sum()) for alive in problem.alive.values()]))
    for name, param in problem.params.items():
        sigmas[name] = torch.full_like(param, torch.inf)
        sigmas[name][problem.alive[name]] = next(values).to(param)
    bad = {name: int(sigma.isnan().sum()) for name, sigma in sigmas.items() if sigma.isnan().any()}
    sigmas.diagnosis = Diagnosis(problem.count, blocks, bad)
    return sigmas


def by_block(problem: Problem, observed: bool) -> Iterator[BlockMatrices]:
    """One block after the other, since the matrices of all may not fit: the data are gone through again for each."""
    count = problem.count
    # A Hessian has the rounding of the model; outer products are added up in double precision.
    dtype = next(iter(problem.params.values())).dtype if observed else torch.float64
    for names in _blocks(problem.alive):
        information = problem.hessian(names) if observed else problem.information(names)
        covariance = torch.zeros_like(information)
        total = torch.zeros_like(information[0])
        for scores in problem.scores(names):
            covariance += scores.T @ scores
            total += scores.sum(0)
        yield BlockMatrices(
            names, information / count, covariance / count, total / count, count, torch.finfo(dtype).eps
        )


def _blocks(alive: Mapping[str, Tensor]) -> list[tuple[str, ...]]:
    """All parameters together while the matrix of the living can be held, else those of each layer by themselves."""
    sizes = {name: int(a.sum()) for name, a in alive.items()}
    if sum(sizes.values()) <= _FULL:
        return [tuple(sizes)]
    blocks = []
    for layer, names in groupby((n for n, size in sizes.items() if size), key=lambda name: name.rpartition(".")[0]):
        block = tuple(names)
        size = sum(sizes[name] for name in block)
        if size > _FULL:
            raise ValueError(
                f"layer {layer!r} has {size:,} parameters: a full information matrix is kept up to {_FULL:,}; "
                "use FisherDiagonal() or SecondMoment()"
            )
        blocks.append(block)
    return blocks


@dataclass(frozen=True)
class _Inverting(Offline):
    """The settings of estimators that invert the information."""

    inverse: Inverse = "inverse"
    damping: float = 1e-3
    observed: bool = False

    def __post_init__(self) -> None:
        one_of("inverse", self.inverse, get_args(Inverse))
        real("damping", self.damping, above=0)


@uncertainty("inverse-fisher")
@dataclass(frozen=True)
class InverseFisher(_Inverting):
    """SE = sqrt([I^-1]_jj / n), I the Fisher information: right if the model is.  Ko et al. (2019), eq. 4.

    `observed` takes the Hessian at the data instead of the expected information. A singular I has no inverse: then
    sigma is NaN, unless a pseudo-inverse or a damped one (`damping` times the mean of the diagonal) is asked for.
    Squared outputs are independent Gaussians, each with the variance of its own residuals.
    """

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss, *, masks: Masks | None = None) -> Sigmas:
        """Standard errors by parameter name."""

        with evaluating(model):
            problem, dispersion = pose(model, batches, loss, masks).balanced()

            def variance(block: BlockMatrices, spectrum: Spectrum) -> Tensor:
                inverse = spectrum.inverted(self.inverse, self.damping)
                return dispersion * (spectrum.vectors.square() @ inverse) / block.samples

            return solve(problem, self.observed, variance)


@uncertainty("sandwich")
@dataclass(frozen=True)
class Sandwich(_Inverting):
    """SE = sqrt([I^-1 K I^-1]_jj / n), K the covariance of the score: right even where the model is wrong.

    Ko et al. (2019), eq. 3; the fields are those of `InverseFisher`.
    """

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss, *, masks: Masks | None = None) -> Sigmas:
        """Standard errors by parameter name."""

        def variance(block: BlockMatrices, spectrum: Spectrum) -> Tensor:
            bread = (spectrum.vectors * spectrum.inverted(self.inverse, self.damping)) @ spectrum.vectors.T
            return ((bread @ block.covariance) * bread).sum(1) / block.samples

        with evaluating(model):
            return solve(pose(model, batches, loss, masks), self.observed, variance)


@uncertainty("sgd-asymptotic")
@dataclass(frozen=True)
class SGDAsymptotic(Offline):
    """The standard deviation of SGD's own last iterate, with steps of rate / t.  Toulis & Airoldi (2017).

    T · Var(w_T) solves (rate H - 1/2) V + V (rate H - 1/2) = rate^2 K / batch_size, H the Hessian of the loss and K the
    covariance of its gradient; it needs rate > 1 / (2 h) for every eigenvalue h of H.
    """

    rate: float = 1.0
    steps: int | None = None  # None: one pass over the data
    batch_size: int = 1
    observed: bool = False

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss, *, masks: Masks | None = None) -> Sigmas:
        """Standard deviations by parameter name."""

        with evaluating(model):
            problem = pose(model, batches, loss, masks)
            sigmas = solve(problem, self.observed, partial(self._variance, problem.gain))
        steps = self.steps or problem.count / self.batch_size
        sigmas.notes = (
            f"the standard errors are of SGD's last iterate after {steps:,.0f} steps of {self.rate!r} / t: "
            "for weights trained in another way they are nominal only",
        )
        return sigmas

    def _variance(self, gain: float, block: BlockMatrices, spectrum: Spectrum) -> Tensor:
        h, vectors = gain * spectrum.values, spectrum.vectors
        if float(h.min()) * 2 * self.rate <= 1:
            raise ValueError(
                f"rate={self.rate!r} is too small for {block.names}: the smallest eigenvalue of its Hessian is "
                f"{float(h.min()):.3g}, and SGD converges as 1/T only for rates above 1 / (2 eigenvalue)"
            )
        noise = gain**2 * (vectors.T @ block.covariance @ vectors) / self.batch_size
        solved = self.rate**2 * noise / (self.rate * (h[:, None] + h[None, :]) - 1)
        return ((vectors @ solved) * vectors).sum(1) / (self.steps or block.samples / self.batch_size)
