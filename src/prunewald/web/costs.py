"""Multiplications of a forward pass, layer by layer: how often each weight is used for one example."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.modules import evaluating

_LINEAR = (nn.Linear,)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def uses(model: nn.Module, inputs: Any) -> dict[str, float]:
    """How many multiplications each weight stands for, by parameter name, in a pass over one example of `inputs`.

    `inputs` are what the model is called with: a tensor, a tuple of arguments, or a dict of them. Known are linear
    layers and convolutions; a layer that is called several times counts each of them.
    """
    found: dict[str, float] = {}
    handles = [
        module.register_forward_hook(_counter(found, f"{name}.weight".lstrip(".")))
        for name, module in model.named_modules()
        if isinstance(module, (*_LINEAR, *_CONVOLUTIONS, *_TRANSPOSED))
    ]
    try:
        with evaluating(model), torch.no_grad():
            _call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    examples = _examples(inputs)
    return {name: times / examples for name, times in found.items()}


def _call(model: nn.Module, inputs: Any) -> None:
    try:
        if isinstance(inputs, Mapping):
            model(**inputs)
        else:
            model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    except Exception as error:
        raise ValueError(
            f"inputs={_shown(inputs)} do not go through {type(model).__name__} ({error}): give what the model is "
            "called with, a tensor, a tuple or a dict"
        ) from error


def _shown(inputs: Any) -> str:
    return f"a tensor of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else repr(inputs)[:200]


def _examples(inputs: Any) -> int:
    """The size of the batch: of the first tensor."""
    given = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    first = next((one for one in given if isinstance(one, Tensor)), None)
    return 1 if first is None or first.dim() == 0 else max(len(first), 1)


def _counter(found: dict[str, float], name: str) -> Any:
    def count(module: Any, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, _TRANSPOSED):
            times = args[0].numel() // module.in_channels
        elif isinstance(module, _CONVOLUTIONS):
            times = output.numel() // module.out_channels
        else:
            times = output.numel() // module.out_features
        found[name] = found.get(name, 0.0) + times

    return count
