"""The real bootstrap: train on resampled data sets, and see how far each weight varies."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.calibration import Calibration
from prunewald.model.masking import Masks
from prunewald.uncertainty.batches import Batches
from prunewald.util.arguments import one_of, whole
from prunewald.util.registry import uncertainty


@uncertainty("bootstrap")
@dataclass(frozen=True)
class Bootstrap(Offline):
    """The standard deviation of each weight over models that are trained on bootstrap samples of the data.

    They are trained all at once, by `prunewald.ensemble.train_many`. `start` says how they begin: with "independent"
    initialisations, as the "independent instances" of Ko, Oehmcke & Gieseke (2019) (their hidden units do not
    correspond, so that sigma is far more than sampling noise); with the "same" one for all; or "warm", from the weights
    of the model at hand, for a tenth of the epochs. Replica r depends on the seed `seed + r` alone. Parameters with
    requires_grad=False stay as they are, and have no sigma.
    """

    replicas: int = 100
    start: Literal["independent", "same", "warm"] = "independent"
    seed: int = 0

    def __post_init__(self) -> None:
        whole("replicas", self.replicas, 2)
        one_of("start", self.start, ("independent", "same", "warm"))

    def estimate(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Any = None,
        *,
        epochs: int = 10,
        masks: Masks | None = None,
        limit: int | None = None,
        progress: bool | Callable[[int], object] = True,
        **training: Any,
    ) -> dict[str, Tensor]:
        """Sigma by the name of each trained parameter; `epochs` and `training` (optimizer, ...) go to `train_many`.

        With `masks` the replicas are pruned as the model is, and sigma is infinite where a weight is pruned.
        """
        from prunewald.ensemble import train_many  # not before it is used: `import prunewald` stays light

        if loss is None:
            raise ValueError("loss=None: the bootstrap trains models of its own, so give the loss to train with")
        x, y = _together(batches, model, limit)
        warm = self.start == "warm"
        start: Any = dict(model.state_dict()) if warm else self.start
        result = train_many(
            model,
            x,
            y,
            loss=loss,
            seeds=range(self.seed, self.seed + self.replicas),
            epochs=math.ceil(epochs / 10) if warm else epochs,
            resample="bootstrap",
            start=start,
            masks=masks,
            progress=progress,
            **training,
        )
        trained = [name for name, param in model.named_parameters() if param.requires_grad]
        sigma = {name: result.params[name].std(0) for name in trained}
        pruned = {name: ~mask.to(sigma[name].device) for name, mask in (masks or {}).items() if name in sigma}
        return sigma | {name: sigma[name].masked_fill(gone, torch.inf) for name, gone in pruned.items()}


def _together(batches: Batches, model: nn.Module, limit: int | None) -> tuple[Tensor, Tensor]:
    """All inputs and all targets, which the replicas draw their samples from."""
    pairs = []
    for batch in Calibration(batches, model, passes=1, limit=limit):
        inputs = [*batch.args, *batch.kwargs.values()]
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not isinstance(batch.required, Tensor):
            raise ValueError(
                f"a batch, {batch.given}: the bootstrap trains many models on pairs of one tensor of inputs and one of "
                "targets; give such pairs, or use FisherDiagonal()"
            )
        pairs.append((inputs[0], batch.required))
    x, y = (torch.cat(column) for column in zip(*pairs, strict=True))
    return x, y
