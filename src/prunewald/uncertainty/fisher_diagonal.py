"""Standard errors from the diagonal of the Fisher information, by per-sample gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.masking import Masks
from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.curvature import Problem, pose
from prunewald.uncertainty.likelihood import Loss, likelihood
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
    label is drawn for each sample, by `seed`. Infinite where no gradient arrives.
    """

    labels: Literal["data", "model"] = "data"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("labels", self.labels, ("data", "model"))

    def estimate(
        self, model: nn.Module, batches: Batches, loss: Loss, *, masks: Masks | None = None
    ) -> dict[str, Tensor]:
        """Standard errors by parameter name; infinite where a mask says pruned.

        `batches` are read as they come, none is kept. Squared errors need them twice, for the variance of the residuals
        first: a generator, which can be read only once, is kept in memory then, so give a list or a DataLoader.
        """
        with evaluating(model):
            passes = 2 if likelihood(loss) == "squared_error" else 1
            problem, variance = pose(model, batches, loss, masks, passes=passes).balanced()
            squares = self._squares(problem)
        # Gradients of squared errors are in units of the residuals' variance; at drawn labels they have variance one.
        scale = variance if self.labels == "data" else variance**0.5
        sigmas = {name: (scale / square.sqrt()).to(problem.params[name]) for name, square in squares.items()}
        return {name: sigma.masked_fill(~problem.alive[name], torch.inf) for name, sigma in sigmas.items()}

    def _squares(self, problem: Problem) -> dict[str, Tensor]:
        """Sums of squared per-sample gradients."""
        params = problem.params
        generator = torch.Generator().manual_seed(self.seed)
        squares = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
        for x, y in problem.samples():
            if self.labels == "model" and problem.outputs <= _FEW:
                for factors in problem.factors(list(params), x, y, most=problem.chunk):
                    for name, rows in factors.items():
                        squares[name] += rows.double().square().sum((0, 1))
                continue
            labels = y if self.labels == "data" else _drawn(problem, x, generator)
            for name, g in problem.gradients(list(params), x, labels).items():
                squares[name] += g.double().square().sum(0)
        return squares


@torch.no_grad()
def _drawn(problem: Problem, x: Tensor, generator: torch.Generator) -> Tensor:
    """Labels as the model would give them, the same on every device."""
    output: Tensor = problem.model(x).cpu()
    if problem.kind == "cross_entropy":
        labels = torch.multinomial(output.softmax(-1), 1, generator=generator)[:, 0]
    elif problem.kind == "binary_cross_entropy":
        labels = torch.bernoulli(output.sigmoid(), generator=generator)
    elif problem.kind == "poisson":
        labels = torch.poisson(output.exp(), generator=generator)
    else:
        spread = problem.precision.to(output).rsqrt().view(output.shape[1:])
        labels = output + spread * torch.randn(output.shape, generator=generator, dtype=output.dtype, device="cpu")
    return labels.to(x.device)
