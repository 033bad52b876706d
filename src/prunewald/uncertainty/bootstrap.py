"""The real bootstrap: train on resampled data sets, and see how far each weight varies."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
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
        loss: Any,
        *,
        epochs: int = 10,
        masks: Masks | None = None,
        **training: Any,
    ) -> dict[str, Tensor]:
        """Sigma by the name of each trained parameter; `epochs` and `training` (optimizer, ...) go to `train_many`.

        With `masks` the replicas are pruned as the model is, and sigma is infinite where a weight is pruned.
        """
        from prunewald.ensemble import train_many  # not before it is used: `import prunewald` stays light

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
        pruned = {name: ~mask.to(sigma[name].device) for name, mask in (masks or {}).items() if name in sigma}
        return sigma | {name: sigma[name].masked_fill(gone, torch.inf) for name, gone in pruned.items()}
