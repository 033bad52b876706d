"""Masks: bool tensors by parameter name, True where a weight is alive; and the one check of those a caller gives."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Masks: TypeAlias = Mapping[str, Tensor]
_SHOWN = 5


def check_masks(
    masks: Any,
    params: Mapping[str, Tensor] | None = None,
    *,
    every: bool = False,
    empty: bool = True,
    what: str = "masks",
) -> None:
    """Refuse what is no dict of bool tensors, or with `params` does not fit them.

    With `every`, each parameter must have a mask; without `empty`, there must be one mask at least.
    """
    if not isinstance(masks, Mapping):
        raise TypeError(f"{what}: {type(masks).__name__} given: give a dict by parameter name, such as pruner.masks")
    if not masks and not empty:
        raise ValueError(f"{what}: an empty dict given: give a mask by parameter name, such as pruner.masks")
    found = [reason for name, mask in masks.items() if (reason := _misfit(name, mask, params))]
    if every and params is not None:
        found += [f"{name!r} has no mask" for name in params if name not in masks]
    if found:
        shown = "; ".join(found[:_SHOWN]) + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
        whose = "pruner.masks" if params is None else "pruner.masks of such a model"
        raise ValueError(f"{what}: {shown}. Give bool tensors, True where a weight is alive, such as {whose}")


def _misfit(name: Any, mask: Any, params: Mapping[str, Tensor] | None) -> str | None:
    """What is wrong with a mask; None where it is a mask and fits its parameter."""
    if not isinstance(mask, Tensor):
        return f"{name!r} is {type(mask).__name__}"
    if not isinstance(name, str) or mask.dtype != torch.bool:
        return f"{name!r} is {mask.dtype}" if isinstance(name, str) else f"the key {name!r} is no name"
    if mask.layout != torch.strided or mask.is_meta:
        return f"{name!r} is {mask.layout} on {mask.device}"
    if params is None:
        return None
    if name not in params:
        return f"{name!r} is no parameter here; there are {', '.join(list(params)[:_SHOWN])}"
    if nn.parameter.is_lazy(params[name]) or params[name].is_meta:
        return f"{name!r} has no values in the model yet"
    if mask.shape != params[name].shape:
        return f"{name!r} has shape {tuple(mask.shape)}, the parameter {tuple(params[name].shape)}"
    return None


def living(model: nn.Module, masks: Masks | None) -> dict[str, Tensor]:
    """A mask for every parameter of a model: the one given, or all True where none is."""
    params = dict(model.named_parameters())
    given = {} if masks is None else masks
    check_masks(given, params)
    return {
        name: given[name].to(p.device) if name in given else torch.ones_like(p, dtype=torch.bool)
        for name, p in params.items()
    }
