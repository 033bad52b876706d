"""The real bootstrap: train on resampled data sets, and see how far each weight varies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.uncertainty.curvature import Batches
from prunewald.util.arguments import one_of, whole
from prunewald.util.registry import uncertainty


@uncertainty("bootstrap")
@dataclass(frozen=True)
class Bootstrap(Offline):
    """std of each weight over models trained on bootstrap samples of the data, all at once (`prunewald.ensemble`).

    `start` is how the replicas begin: "independent" initialisations, as the paper's "independent instances" (their
    hidden units are not the same ones, so this is far more than sampling noise); the "same" one for all; or "warm",
    from the weights of the model at hand, for a tenth of the epochs. Replica r depends on seed + r alone. Parameters
    with requires_grad=False stay as they are, and have no sigma.
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
        loss: Any,
        *,
        epochs: int = 10,
        masks: Mapping[str, Tensor] | None = None,
        **training: Any,
    ) -> dict[str, Tensor]:
        """Sigma of each trained parameter by its name; `epochs` and `training` (optimizer, ...) go to `train_many`.

        With `masks` the replicas are of the pruned model, and what is pruned has an infinite sigma.
        """
        from prunewald.ensemble import train_many

        x, y = (torch.cat(column) for column in zip(*batches, strict=True))
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
            **training,
        )
        trained = [name for name, param in model.named_parameters() if param.requires_grad]
        sigma = {name: result.params[name].std(0) for name in trained}
        pruned = {name: ~mask.bool().to(sigma[name].device) for name, mask in (masks or {}).items() if name in sigma}
        return sigma | {name: sigma[name].masked_fill(gone, torch.inf) for name, gone in pruned.items()}
