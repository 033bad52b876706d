"""The whole model judged on the examples held back: by a loss, or by how far its outputs are from the dense ones."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from prunewald.distributed import summed
from prunewald.model.returned import outputs
from prunewald.refitting.examples import Given
from prunewald.refitting.passes import Passes
from prunewald.uncertainty.likelihood import Loss, as_function

DISTANCE = "squared distance to the dense outputs, as a share of their squares,"


class Judge:
    """Tells how good the model is at this moment; less is better."""

    def __init__(self, passes: Passes, examples: Iterable[Given], loss: Loss | None) -> None:
        self._passes, self._examples = passes, examples
        self._loss: Callable[..., Tensor] | None = None if loss is None else as_function(loss)
        self.words = DISTANCE if loss is None else "loss"

    @torch.no_grad()
    def __call__(self) -> float:
        """The mean loss, or the distance."""
        total = torch.zeros(2, dtype=torch.float64)
        for given in self._examples:
            if given.held:
                part = self._distance(given) if self._loss is None else self._mean(given, self._loss)
                total += torch.tensor(part, dtype=torch.float64)
        over, under = map(float, summed(total))
        return over / (under or 1.0)

    def _mean(self, given: Given, loss: Callable[..., Any]) -> tuple[float, float]:
        value = loss(outputs(self._passes.outputs(given, dense=False)), given.batch.required)
        return float(torch.as_tensor(value).double().mean()) * given.size, given.size

    def _distance(self, given: Given) -> tuple[float, float]:
        own, dense = (_counted(outputs(self._passes.outputs(given, dense=d)), given.keep) for d in (False, True))
        return float((own - dense).square().sum()), float(dense.square().sum())


def _counted(found: Tensor, keep: Tensor | None) -> Tensor:
    """The outputs at the positions that count."""
    if keep is not None and found.shape[: keep.dim()] == keep.shape:
        found = found[keep.to(found.device)]
    return found.double()
