"""Which weights are free: those that the masks of a pruning leave alive."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

Masks: TypeAlias = Mapping[str, Tensor]


def living(model: nn.Module, masks: Masks | None) -> dict[str, Tensor]:
    """By parameter name, True where a weight is alive; all of a parameter that no mask speaks of."""
    params = dict(model.named_parameters())
    given = _checked({} if masks is None else masks, params)
    return {
        name: given[name].to(p.device) if name in given else torch.ones_like(p, dtype=torch.bool)
        for name, p in params.items()
    }


def _checked(masks: Masks, params: Mapping[str, Tensor]) -> Masks:
    if not isinstance(masks, Mapping):
        raise TypeError(f"masks is a {type(masks).__name__}: give a dict by parameter name, such as pruner.masks")
    for name, mask in masks.items():
        if name not in params:
            raise ValueError(f"masks has {name!r}, the model has {sorted(params)}: name parameters as the model does")
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"the mask of {name!r} is {kind}: give a bool tensor, True where a weight is alive")
        if mask.shape != params[name].shape:
            raise ValueError(
                f"the mask of {name!r} has shape {tuple(mask.shape)}, the parameter has {tuple(params[name].shape)}: "
                "give one entry for each weight"
            )
    return masks
