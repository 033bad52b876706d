"""Sigma of a weight from the activations it multiplies: the Wald view of Wanda."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.core.base import Offline
from prunewald.model.calibration import Calibration, counted_positions
from prunewald.model.inputs import LAYERS, only_positions, squares_met
from prunewald.model.masking import Masks, living
from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import Batches
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.registry import uncertainty


@uncertainty("layer-least-squares")
@dataclass(frozen=True)
class LayerLeastSquares(Offline):
    """sigma_j = s / ||x_j||, x_j the inputs that weight j multiplies in a calibration pass.

    It is the standard error of a layer's weights in a least-squares fit of the layer's own output, inputs taken as
    uncorrelated; |w| / sigma is Wanda's |w|·||x||. s is chosen so that the median of sigma over a layer's living
    weights is their spread, since the noise of an inner layer is not known. For linear and convolutional layers; a
    weight that several of them share meets the inputs of all.
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
    ) -> dict[str, Tensor]:
        """Sigma of the weights of every linear and convolutional layer; infinite where pruned or never met.

        No loss is wanted, and the targets in `batches` play no part; positions that are padding do not count.
        """
        squares: dict[str, Tensor] = {}

        def read(name: str, module: Any, args: Any, kwargs: Any) -> None:
            met = squares_met(module, args, kwargs).double()
            squares[name] = squares.get(name, 0) + met.repeat_interleave(len(module.weight) // len(met), 0)

        params = inputs_read(model, batches, read, limit=limit, progress=progress)
        alive = living(model, masks)
        return {name: to_spread(square.rsqrt(), params[name], alive[name]) for name, square in squares.items()}


def inputs_read(
    model: nn.Module, batches: Batches, read: Callable[[str, Any, Any, Any], None], *, limit: int | None, progress: bool
) -> dict[str, Any]:
    """Go through the batches, `read(name, layer, args, kwargs)` at each call of a layer; the parameters by name."""
    params = dict(model.named_parameters())
    names = {id(p): name for name, p in params.items()}  # the first name of a tensor that has several
    layers = [m for m in model.modules() if isinstance(m, LAYERS) and id(m.weight) in names]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no linear or convolutional layer, whose inputs could be read")

    def hook(module: Any, args: Any, kwargs: Any) -> None:
        read(names[id(module.weight)], module, args, kwargs)

    handles = [m.register_forward_pre_hook(hook, with_kwargs=True) for m in layers]
    try:
        with evaluating(model), torch.no_grad():
            for batch in Calibration(batches, model, passes=1, limit=limit, progress=progress):
                with only_positions(counted_positions(batch)):
                    batch.call(model)
    finally:
        for handle in handles:
            handle.remove()
    return params


def to_spread(sigma: Tensor, weight: Tensor, alive: Tensor) -> Tensor:
    """Sigma so scaled that its median is the spread of the living weights; infinite for the others."""
    sigma = sigma.masked_fill(~alive, torch.inf)
    met = sigma[sigma.isfinite()]
    if met.numel() > 1:
        sigma = sigma * (weight.detach()[alive].double().std() / met.median())
    return sigma.to(weight.dtype)
