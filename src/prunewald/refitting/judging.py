"""The whole model judged on the examples held back: by a loss, or by how far its outputs are from the dense ones."""

from collections.abc import Iterable

import torch
from torch import Tensor

from prunewald.distributed import summed
from prunewald.model.returned import outputs
from prunewald.refitting.examples import Some
from prunewald.refitting.feed import Given
from prunewald.refitting.passes import Passes
from prunewald.uncertainty.batches import value_of
from prunewald.uncertainty.likelihood import Loss, as_function

DISTANCE = "squared distance to the dense outputs, as a share of their squares,"


class Judge:
    """Tells how good the model is at this moment; less is better."""

    def __init__(self, passes: Passes, examples: Iterable[Some], loss: Loss | None) -> None:
        self._passes, self._examples, self._loss = passes, examples, loss
        self.words = DISTANCE if loss is None else "loss"
        if loss is not None:
            as_function(loss)  # refuses a name that is none

    @torch.no_grad()
    def __call__(self, feed: Iterable[Given] | None = None) -> float:
        """The mean loss, or the distance, for which `feed` may give the examples by a shorter way."""
        if self._loss is None:
            parts = [self._distance(given) for given in feed or self._examples if given.held]
        else:
            parts = [self._mean(given, self._loss) for given in self._examples if given.held]
        over, under = map(float, summed(torch.tensor(parts, dtype=torch.float64).view(-1, 2).sum(0)))
        return over / (under or 1.0)

    def _mean(self, given: Some, loss: Loss) -> tuple[float, float]:
        return float(value_of(loss, self._passes.module, given.batch).double().mean()) * given.size, given.size

    def _distance(self, given: Given) -> tuple[float, float]:
        own, dense = (_counted(outputs(self._passes.run(given, dense=d)), given.keep) for d in (False, True))
        return float((own - dense).square().sum()), float(dense.square().sum())


def _counted(found: Tensor, keep: Tensor | None) -> Tensor:
    """The outputs at the positions that count."""
    if keep is not None and found.shape[: keep.dim()] == keep.shape:
        found = found[keep.to(found.device)]
    return found.double()
