"""Standard errors from the diagonal of the Fisher information, by per-sample gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.calibration import IGNORED
from prunewald.model.masking import Masks
from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import Batches, Inputs
from prunewald.uncertainty.curvature import Problem, pose
from prunewald.uncertainty.diagnosis import EACH_ALONE, Diagnosis, Sigmas, far
from prunewald.uncertainty.likelihood import Loss, by_position, likelihood
from prunewald.util.arguments import one_of
from prunewald.util.registry import uncertainty

_FEW = 32  # outputs: so many backward passes for a sample are better than the noise of drawn labels


@uncertainty("fisher-diagonal")
@dataclass(frozen=True)
class FisherDiagonal(Offline):
    """SE = 1 / sqrt(n F_jj): the standard error of a weight as if all others were known.

    F is the mean square of per-sample gradients: at the data's own labels (`labels="data"`, the empirical Fisher), or
    at labels of the model's own distribution (`labels="model"`), which is the Fisher information proper. For a model
    with up to 32 outputs that is the exact expectation over its labels, a backward pass for each output; beyond, one
    label is drawn for each sample, by `seed`. Infinite where no gradient arrives. With squared errors weight / SE is
    t-distributed with `.degrees` of freedom; a note says where the score at the data's labels is far from zero.

    Of sequences with a label at each position, outputs (B, T, classes) and labels (B, T), a sample is a whole sequence:
    its log-likelihood is the sum over the positions whose label is not ignored, and `labels="model"` draws a label for
    each of them.
    """

    labels: Literal["data", "model"] = "data"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("labels", self.labels, ("data", "model"))

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
        """Standard errors by parameter name; infinite where a mask says pruned.

        `batches`, at most `limit` of them, are read as they come, none is kept. Squared errors need them twice, for the
        variance of the residuals first: a generator, which can be read only once, is kept in memory then, so give a
        list or a DataLoader. Without a `loss` it is the one that the model computes itself.
        """
        with evaluating(model):
            passes = None if loss is None else 2 if likelihood(loss) == "squared_error" else 1
            posed = pose(model, batches, loss, masks, passes=passes, limit=limit, progress=progress)
            problem, variance = posed.balanced()
            squares, totals = self._sums(problem)
        # Gradients of squared errors are in units of the residuals' variance; at drawn labels they have variance one.
        scale = variance if self.labels == "data" else variance**0.5
        sigmas = Sigmas()
        for name, alive in problem.alive.items():
            sigma = (scale / squares[name].sqrt()).to(problem.params[name])
            sigmas[name] = sigma.masked_fill(~alive, torch.inf)
        sigmas.diagnosis = Diagnosis(problem.count, (), {})
        sigmas.degrees, sigmas.caveat = problem.degrees(), EACH_ALONE
        sigmas.notes = _notes(problem, squares, totals) if self.labels == "data" else ()
        return sigmas

    def _sums(self, problem: Problem) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Sums of squared per-sample gradients, and of the gradients themselves where they are the data's."""
        params = problem.params
        generator = torch.Generator().manual_seed(self.seed)
        squares = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
        totals = {name: torch.zeros_like(square) for name, square in squares.items() if self.labels == "data"}
        for x, y in problem.samples():
            single = problem.kind != "cross_entropy" or y.dim() == 1
            if self.labels == "model" and single and problem.outputs <= _FEW:
                for factors in problem.factors(list(params), x, y, most=problem.chunk):
                    for name, rows in factors.items():
                        squares[name] += rows.double().square().sum((0, 1))
                continue
            labels = y if self.labels == "data" else _drawn(problem, x, y, generator)
            for name, g in problem.gradients(list(params), x, labels).items():
                squares[name] += g.double().square().sum(0)
                if name in totals:
                    totals[name] += g.double().sum(0)
        return squares, totals


def _notes(problem: Problem, squares: dict[str, Tensor], totals: dict[str, Tensor]) -> tuple[str, ...]:
    """Whether the mean score is far from zero, in its standard errors."""
    seen = {name: problem.alive[name] & (square > 0) for name, square in squares.items()}
    z2 = torch.cat([totals[name][at].square() / squares[name][at] for name, at in seen.items()])
    return tuple(far(float(z2.mean().sqrt()), list(squares))) if len(z2) else ()


@torch.no_grad()
def _drawn(problem: Problem, x: Inputs, y: Tensor, generator: torch.Generator) -> Tensor:
    """Labels as the model would give them, the same on every device; what is ignored stays so."""
    output = problem.derivatives.output(x).cpu()
    if problem.kind == "cross_entropy":
        rows, given = by_position(output, y.cpu(), last=problem.batches.classes_last)
        drawn = torch.multinomial(rows.softmax(-1), 1, generator=generator)[:, 0]
        labels = drawn.where(given != IGNORED, given).view(y.shape)
    elif problem.kind == "binary_cross_entropy":
        labels = torch.bernoulli(output.sigmoid(), generator=generator)
    elif problem.kind == "poisson":
        labels = torch.poisson(output.exp(), generator=generator)
    else:
        spread = problem.precision.to(output).rsqrt().view(output.shape[1:])
        labels = output + spread * torch.randn(output.shape, generator=generator, dtype=output.dtype, device="cpu")
    return labels.to(y.device)
