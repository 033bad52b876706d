"""Standard errors in closed form: inverse Fisher information, sandwich, and the asymptotic covariance of SGD itself.

The paper's eq. 7 writes SE = sqrt(V_jj), but by its eq. 5 V is the variance of sqrt(n) w: here SE = sqrt(V_jj / n).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import get_args

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.masking import Masks
from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.curvature import Problem, pose
from prunewald.uncertainty.diagnosis import Diagnosis, Sigmas
from prunewald.uncertainty.information import BlockMatrices, Inverse
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.arguments import one_of, real
from prunewald.util.registry import uncertainty

_FULL = 20_000  # parameters whose information matrix is held whole
_REMEDY = (
    "For p-values use inverse='inverse' and leave out what the data tell of only together (of the outputs of a "
    "softmax one can be zero, and left out by masks=); prune(sparsity) needs only the order"
)

Variance = Callable[[BlockMatrices], Tensor]  # of the parameters that the data tell something of


def solve(problem: Problem, observed: bool, variance: Variance) -> Sigmas:
    """Standard errors of every parameter that takes gradients, NaN where there is none, with their diagnosis."""
    flat, diagnoses = [], []
    for block in by_block(problem, observed):
        found = block.full(variance(block))
        diagnoses.append(block.diagnosed(found))
        flat.append(found.masked_fill(found < 0, torch.nan).sqrt())
    sigmas = _named(problem, torch.cat(flat))
    bad = {name: int(sigma.isnan().sum()) for name, sigma in sigmas.items() if sigma.isnan().any()}
    sigmas.diagnosis = Diagnosis(problem.count, tuple(diagnoses), bad)
    sigmas.notes = tuple(note for block in diagnoses for note in block.notes())
    sigmas.degrees = problem.degrees(sum(block.untold for block in diagnoses))
    return sigmas


def _named(problem: Problem, flat: Tensor) -> Sigmas:
    sigmas = Sigmas()
    values = iter(flat.split([int(alive.sum()) for alive in problem.alive.values()]))
    for name, param in problem.params.items():
        sigmas[name] = torch.full_like(param, torch.inf)
        sigmas[name][problem.alive[name]] = next(values).to(param)
    return sigmas


def by_block(problem: Problem, observed: bool) -> Iterator[BlockMatrices]:
    """One block after the other, since the matrices of all may not fit: the data are gone through again for each."""
    for names in _blocks(problem.alive):
        root, bend, scores, mean = problem.means(names, observed)
        information = root.T @ root
        straight = bend is None or not bool(bend.any())
        yield BlockMatrices(
            names,
            information if bend is None else information.add_(bend),
            scores,
            mean,
            bend=bend,
            samples=problem.count,
            eps=problem.eps,
            root=root if straight else None,
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

    def _marked(self, sigmas: Sigmas) -> Sigmas:
        """Where it was not the inverse that was asked for, a word on that: these are no standard errors."""
        if self.inverse != "inverse":
            done = "pseudo-inverted" if self.inverse == "pseudo" else f"damped by {self.damping!r} of its diagonal"
            why = f"the information was {done}: sigma is no standard error"
            sigmas.notes = (f"{why}, but has an order to prune by", *sigmas.notes)
            sigmas.untested = f"{type(self).__name__}(inverse={self.inverse!r}): {why}. {_REMEDY}"
        return sigmas


@uncertainty("inverse-fisher")
@dataclass(frozen=True)
class InverseFisher(_Inverting):
    """SE = sqrt([I^-1]_jj / n), I the Fisher information: right if the model is.  Ko et al. (2019), eq. 4.

    `observed` takes the Hessian at the data instead of the expected information. A singular I has no inverse: then
    sigma is NaN, unless a pseudo-inverse or a damped one (`damping` times its own diagonal is added) is asked for;
    these give weights an order, but no p-values. I is singular where the precision of the model's derivatives cannot
    tell it from that. Squared outputs are independent Gaussians, each with the variance of its own residuals, and
    weight / SE is t-distributed with `.degrees` = n - p / outputs degrees of freedom.
    """

    def estimate(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Loss | None = None,
        *,
        masks: Masks | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> Sigmas:
        """Standard errors by parameter name."""

        with evaluating(model):
            posed = pose(model, batches, loss, masks, double=True, limit=limit, progress=progress)
            problem, dispersion = posed.balanced()

            def variance(block: BlockMatrices) -> Tensor:
                return dispersion * block.spectrum.inverted(self.inverse, self.damping).diagonal() / block.samples

            sigmas = solve(problem, self.observed, variance)
            # What the data tell nothing of was not fitted: the residuals have more degrees of freedom than was thought.
            ratio = (problem.degrees() or problem.count) / (sigmas.degrees or problem.count)
        for sigma in sigmas.values() if ratio != 1 else ():
            sigma *= ratio**0.5
        return self._marked(sigmas)


@uncertainty("sandwich")
@dataclass(frozen=True)
class Sandwich(_Inverting):
    """SE = sqrt([I^-1 K I^-1]_jj / n), K the covariance of the score: right even where the model is wrong.

    Ko et al. (2019), eq. 3; the fields are those of `InverseFisher`.
    """

    def estimate(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Loss | None = None,
        *,
        masks: Masks | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> Sigmas:
        """Standard errors by parameter name."""

        def variance(block: BlockMatrices) -> Tensor:
            columns, weights = block.spectrum.inverted(self.inverse, self.damping)
            scores = ((block.scores[:, block.told] @ columns) * weights) @ columns.T  # each one's share in the errors
            return scores.square().sum(0) / block.samples

        with evaluating(model):
            problem = pose(model, batches, loss, masks, double=True, limit=limit, progress=progress)
            return self._marked(solve(problem, self.observed, variance))


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

    def estimate(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Loss | None = None,
        *,
        masks: Masks | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> Sigmas:
        """Standard deviations by parameter name."""

        with evaluating(model):
            problem = pose(model, batches, loss, masks, double=True, limit=limit, progress=progress)
            sigmas = solve(problem, self.observed, partial(self._variance, problem))
        steps = self.steps or problem.count / self.batch_size
        sigmas.degrees = None  # an iterate is normal, whatever its residuals are
        sigmas.notes = (
            f"the standard errors are of SGD's last iterate after {steps:,.0f} steps of {self.rate!r} / t: "
            "for weights trained in another way they are nominal only",
            *sigmas.notes,
        )
        return sigmas

    def _variance(self, problem: Problem, block: BlockMatrices) -> Tensor:
        gain = problem.gain
        values, vectors = torch.linalg.eigh(block.information)  # as it is: SGD itself knows the units of its steps
        h = gain * values
        if float(h.min()) * 2 * self.rate <= 1:
            raise ValueError(
                f"rate={self.rate!r} is too small for {block.names}: the smallest eigenvalue of its Hessian is "
                f"{float(h.min()):.3g}, and SGD converges as 1/T only for rates above 1 / (2 eigenvalue)"
            )
        noise = gain**2 * (vectors.T @ block.covariance @ vectors) / self.batch_size
        solved = self.rate**2 * noise / (self.rate * (h[:, None] + h[None, :]) - 1)
        variance: Tensor = ((vectors @ solved) * vectors).sum(1)
        return variance / (self.steps or block.samples / self.batch_size)
