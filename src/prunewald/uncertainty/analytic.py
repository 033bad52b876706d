"""Standard errors in closed form: inverse Fisher information, sandwich, and the asymptotic covariance of SGD itself.

The paper's eq. 7 writes SE = sqrt(V_jj), but by its eq. 5 V is the variance of sqrt(n) w: here SE = sqrt(V_jj / n).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate as accumulate_sizes
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor, nn

from prunewald.registry import uncertainty
from prunewald.uncertainty.curvature import Batches, Loss, Problem, evaluating, likelihood

Inverse = Literal["inverse", "pseudo", "damped"]
_FULL = 20_000  # parameters whose information matrix is held whole


@dataclass(frozen=True)
class Block:
    """What the matrices of one block of parameters looked like: what the paper had to find out by hand."""

    params: tuple[str, ...]
    size: int
    rank: int
    condition: float
    negative: int  # variances that came out negative
    score: float  # the mean score in units of its standard error, root mean square over parameters: 1 at an optimum


@dataclass(frozen=True)
class Diagnosis:
    """Whether the standard errors can be believed."""

    samples: int
    blocks: tuple[Block, ...]
    bad: dict[str, int]  # parameters with entries that have no standard error, and how many

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples"]
        for block in self.blocks:
            names = ", ".join(block.params[:3]) + (", ..." if len(block.params) > 3 else "")
            lines.append(
                f"{names}: rank {block.rank:,} of {block.size:,}, condition {block.condition:.1e}, "
                f"{block.negative:,} negative variances, mean score {block.score:.2g} standard errors from 0"
            )
        lines += [f"no standard error for {count:,} entries of {name}" for name, count in self.bad.items()]
        return "\n".join(lines)


class Sigmas(dict[str, Tensor]):
    """Sigma by parameter name, with a diagnosis; NaN where there is none."""

    diagnosis: Diagnosis


@dataclass(frozen=True)
class Part:
    """One block of parameters: its information, the covariance of its scores, and what they were made from."""

    names: tuple[str, ...]
    information: Tensor  # the mean over samples, squared errors in units of their variance
    covariance: Tensor  # of the scores, in the same units
    mean: Tensor  # of the scores
    samples: int
    dispersion: float  # the variance of a squared-error model's residuals; 1 for the others
    gain: float  # how much larger the derivative of the user's loss is than that of the likelihood

    def diagnosed(self, values: Tensor, keep: Tensor, variance: Tensor) -> Block:
        """What there is to say about it."""
        error = (self.covariance.diagonal() / self.samples).sqrt()
        z = (self.mean / error)[error > 0]
        living = values[keep].abs()
        return Block(
            params=self.names,
            size=len(values),
            rank=int(keep.sum()),
            condition=float(living.max() / living.min()) if bool(keep.all()) else torch.inf,
            negative=int((variance < 0).sum()),
            score=float(z.square().mean().sqrt()),
        )


Variance = Callable[[Part, Tensor, Tensor, Tensor], Tensor]  # of a part, its eigenvalues, eigenvectors, which count


def solve(model: nn.Module, batches: Batches, loss: Loss, observed: bool, variance: Variance) -> Sigmas:
    """Standard errors of every parameter that takes gradients, and the diagnosis; NaN where there is none."""
    with evaluating(model):
        problem = Problem(model, [(x.detach(), y.detach()) for x, y in batches], likelihood(loss))
        parts = accumulate(problem, observed)
    flat, blocks = [], []
    for part in parts:
        values, vectors = torch.linalg.eigh(part.information)
        keep = values.abs() > values.abs().max() * len(values) * _precision(problem, observed)
        found = variance(part, values, vectors, keep)
        blocks.append(part.diagnosed(values, keep, found))
        found = found.masked_fill(found < 0, torch.nan)
        # The data say nothing of a parameter without information: a pseudo-inverse would call it certain.
        flat.append(found.masked_fill(part.information.diagonal() == 0, torch.inf).sqrt())
    return _named(problem, torch.cat(flat), parts[0].samples, tuple(blocks))


def _precision(problem: Problem, observed: bool) -> float:
    """What is rounding: a Hessian has that of the model; outer products are added up in double precision."""
    dtype = next(iter(problem.params.values())).dtype if observed else torch.float64
    return torch.finfo(dtype).eps


def _named(problem: Problem, flat: Tensor, samples: int, blocks: tuple[Block, ...]) -> Sigmas:
    params = problem.params
    cut = flat.split([p.numel() for p in params.values()])
    sigmas = Sigmas({n: part.view(p.shape).to(p) for (n, p), part in zip(params.items(), cut, strict=True)})
    bad = {name: int(sigma.isnan().sum()) for name, sigma in sigmas.items() if sigma.isnan().any()}
    sigmas.diagnosis = Diagnosis(samples, blocks, bad)
    return sigmas


def accumulate(problem: Problem, observed: bool) -> list[Part]:
    """Go through the data once for the information, once for the scores, block by block."""
    blocks = _blocks(problem.params)
    information = [problem.zeros(stop - start) for _, start, stop in blocks]
    covariance = [torch.zeros_like(i) for i in information]
    total = problem.zeros(blocks[-1][2], vector=True)
    count = 0
    pieces = problem.hessians() if observed else problem.factors()
    for piece in pieces:
        for matrix, (_, start, stop) in zip(information, blocks, strict=True):
            part = piece[:, start:stop]
            matrix += part[start:stop] if observed else part.T @ part
    for scores in problem.scores():
        count += len(scores)
        total += scores.sum(0)
        for matrix, (_, start, stop) in zip(covariance, blocks, strict=True):
            matrix += scores[:, start:stop].T @ scores[:, start:stop]
    dispersion = problem.dispersion(count)
    return [
        Part(names, i / count, k / count, total[start:stop] / count, count, dispersion, problem.gain)
        for (names, start, stop), i, k in zip(blocks, information, covariance, strict=True)
    ]


def _blocks(params: Mapping[str, Tensor]) -> list[tuple[tuple[str, ...], int, int]]:
    """All parameters together while their matrix can be held, else those of each layer by themselves."""
    ends = list(accumulate_sizes(p.numel() for p in params.values()))
    if ends[-1] <= _FULL:
        return [(tuple(params), 0, ends[-1])]
    blocks: list[tuple[tuple[str, ...], int, int]] = []
    for layer, names in groupby(params, key=lambda name: name.rpartition(".")[0]):
        chosen, start = tuple(names), blocks[-1][2] if blocks else 0
        stop = start + sum(params[name].numel() for name in chosen)
        if stop - start > _FULL:
            raise ValueError(
                f"layer {layer!r} has {stop - start:,} parameters: a full information matrix is kept up to {_FULL:,}; "
                "use FisherDiagonal() or SecondMoment()"
            )
        blocks.append((chosen, start, stop))
    return blocks


def inverted(values: Tensor, keep: Tensor, how: Inverse, damping: float) -> Tensor:
    """The eigenvalues of the inverse that was asked for; NaN where there is no inverse."""
    if how == "damped":
        return 1 / (values + damping * values.mean())
    if how == "pseudo" or bool(keep.all()):
        return torch.where(keep, 1 / values, 0.0)
    return torch.full_like(values, torch.nan)


@dataclass(frozen=True)
class _Inverting:
    """The settings of estimators that invert the information."""

    inverse: Inverse = "inverse"
    damping: float = 1e-3
    observed: bool = False

    def __post_init__(self) -> None:
        if self.inverse not in ("inverse", "pseudo", "damped"):
            raise ValueError(f"inverse must be 'inverse', 'pseudo' or 'damped', not {self.inverse!r}")
        if not self.damping > 0:
            raise ValueError(f"damping must be above 0, not {self.damping!r}")


@uncertainty("inverse-fisher")
@dataclass(frozen=True)
class InverseFisher(_Inverting):
    """SE = sqrt([I^-1]_jj / n), I the Fisher information: right if the model is.  Ko et al. (2019), eq. 4.

    `observed` takes the Hessian at the data instead of the expected information. A singular I has no inverse: then
    sigma is NaN, unless a pseudo-inverse or a damped one (`damping` times the mean of the diagonal) is asked for.
    """

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss) -> Sigmas:
        """Standard errors by parameter name."""

        def variance(part: Part, values: Tensor, vectors: Tensor, keep: Tensor) -> Tensor:
            inverse = inverted(values, keep, self.inverse, self.damping)
            return part.dispersion * (vectors.square() @ inverse) / part.samples

        return solve(model, batches, loss, self.observed, variance)


@uncertainty("sandwich")
@dataclass(frozen=True)
class Sandwich(_Inverting):
    """SE = sqrt([I^-1 K I^-1]_jj / n), K the covariance of the score: right though the model is not.  Eq. 3."""

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss) -> Sigmas:
        """Standard errors by parameter name."""

        def variance(part: Part, values: Tensor, vectors: Tensor, keep: Tensor) -> Tensor:
            bread = (vectors * inverted(values, keep, self.inverse, self.damping)) @ vectors.T
            return ((bread @ part.covariance) * bread).sum(1) / part.samples

        return solve(model, batches, loss, self.observed, variance)


@uncertainty("sgd-asymptotic")
@dataclass(frozen=True)
class SgdAsymptotic:
    """The standard deviation of SGD's own last iterate, with steps of rate / t.  Toulis & Airoldi (2017).

    T · Var(w_T) solves (rate H - 1/2) V + V (rate H - 1/2) = rate^2 K / batch_size, H the Hessian of the loss and K the
    covariance of its gradient; it needs rate > 1 / (2 h) for every eigenvalue h of H.
    """

    rate: float = 1.0
    steps: int | None = None  # None: one pass over the data
    batch_size: int = 1
    observed: bool = False

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss) -> Sigmas:
        """Standard deviations by parameter name."""

        def variance(part: Part, values: Tensor, vectors: Tensor, keep: Tensor) -> Tensor:
            h = part.gain * values
            if float(h.min()) * 2 * self.rate <= 1:
                raise ValueError(
                    f"rate={self.rate!r} is too small for {part.names}: the smallest eigenvalue of its Hessian is "
                    f"{float(h.min()):.3g}, and SGD converges as 1/T only for rates above 1 / (2 eigenvalue)"
                )
            noise = part.gain**2 * (vectors.T @ part.covariance @ vectors) / self.batch_size
            solved = self.rate**2 * noise / (self.rate * (h[:, None] + h[None, :]) - 1)
            return ((vectors @ solved) * vectors).sum(1) / (self.steps or part.samples / self.batch_size)

        return solve(model, batches, loss, self.observed, variance)
