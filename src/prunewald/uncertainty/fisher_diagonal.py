"""Standard errors from the diagonal of the Fisher information, by per-sample gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from prunewald.registry import uncertainty
from prunewald.uncertainty.curvature import Batches, Loss, Problem, evaluating, likelihood, negative_log_likelihood


@uncertainty("fisher-diagonal")
@dataclass(frozen=True)
class FisherDiagonal:
    """SE = 1 / sqrt(n F_jj): the standard error of a weight as if all others were known.

    F is the mean square of per-sample gradients: at the data's own labels (`labels="data"`, the empirical Fisher), or
    at labels drawn from the model (`labels="model"`), which is the Fisher information proper. Infinite where no
    gradient arrives.
    """

    labels: Literal["data", "model"] = "data"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.labels not in ("data", "model"):
            raise ValueError(f"labels must be 'data' or 'model', not {self.labels!r}")

    def estimate(self, model: nn.Module, batches: Batches, loss: Loss) -> dict[str, Tensor]:
        """Standard errors by parameter name."""
        with evaluating(model):
            problem = Problem(model, [(x.detach(), y.detach()) for x, y in batches], likelihood(loss))
            squares, count = self._squares(problem)
            variance = problem.dispersion(count)
        # Gradients of squared errors are in units of the residuals' variance; at drawn labels they have variance one.
        scale = variance if self.labels == "data" else variance**0.5
        return {name: (scale / square.sqrt()).to(problem.params[name]) for name, square in squares.items()}

    def _squares(self, problem: Problem) -> tuple[dict[str, Tensor], int]:
        """Sums of squared per-sample gradients, and the number of samples."""
        params = problem.params
        generator = torch.Generator().manual_seed(self.seed)

        def one(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return negative_log_likelihood(problem.kind, problem.output(p, x), y)

        squares = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
        count = 0
        for x, y in problem.samples():
            labels = y if self.labels == "data" else _drawn(problem, x, generator)
            for name, g in vmap(grad(one), in_dims=(None, 0, 0))(params, x, labels).items():
                squares[name] += g.double().square().sum(0)
            count += len(x)
        return squares, count


@torch.no_grad()
def _drawn(problem: Problem, x: Tensor, generator: torch.Generator) -> Tensor:
    """Labels as the model would give them, the same on every device."""
    output: Tensor = problem.model(x).cpu()
    if problem.kind == "cross_entropy":
        labels = torch.multinomial(output.softmax(-1), 1, generator=generator)[:, 0]
    elif problem.kind == "binary_cross_entropy":
        labels = torch.bernoulli(output.sigmoid(), generator=generator)
    else:
        labels = output + torch.randn(output.shape, generator=generator, dtype=output.dtype)
    return labels.to(x.device)
