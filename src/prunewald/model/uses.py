"""Multiplications of a forward pass, layer by layer: how often each weight is used for one example."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.modules import evaluating

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LIKE_LINEAR = {"Conv1D"}  # of Transformers, by name: (in, out)


def uses(model: nn.Module, inputs: Any, what: str = "inputs") -> dict[str, float]:
    """How many multiplications each weight stands for, by parameter name, in a pass over one example of `inputs`.

    `inputs` are what the model is called with: a tensor, a tuple of arguments, or a dict of them. Known are linear
    layers, convolutions and recurrent layers; what is called several times, or is shared, counts each of them. `what`
    the inputs are is said in errors.
    """
    names = {id(param): name for name, param in model.named_parameters()}
    found: dict[str, float] = {}

    def count(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        for param, times in _times(module, args, output):
            name = names[id(param)]
            found[name] = found.get(name, 0.0) + times

    handles = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with evaluating(model), torch.no_grad():
            _call(model, inputs, what)
    finally:
        for handle in handles:
            handle.remove()
    examples = _examples(inputs)
    return {name: times / examples for name, times in found.items()}


def _times(module: Any, args: tuple[Any, ...], output: Any) -> Iterator[tuple[Tensor, int]]:
    """The weights of a layer, and how often one call of it uses each."""
    if isinstance(module, nn.Linear) or type(module).__name__ in _LIKE_LINEAR:
        yield module.weight, output.numel() // output.shape[-1]
    elif isinstance(module, _CONVOLUTIONS):
        yield module.weight, output.numel() // module.out_channels
    elif isinstance(module, _TRANSPOSED) and args:
        yield module.weight, args[0].numel() // module.in_channels
    elif isinstance(module, nn.MultiheadAttention):
        asked = output[0].numel() // output[0].shape[-1]  # by cross attention the inputs of keys may be more or fewer
        names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        found = (module._parameters[name] for name in names)
        yield from ((param, asked) for param in found if param is not None)
        if type(module).forward is nn.MultiheadAttention.forward:  # it never calls the module of its last layer
            yield module.out_proj.weight, asked
    elif isinstance(module, nn.RNNBase) and args:
        steps = args[0].data.numel() // module.input_size  # of a packed sequence too
        yield from ((param, steps) for name, param in module.named_parameters(recurse=False) if "weight" in name)


def _call(model: Callable[..., Any], inputs: Any, what: str) -> None:
    try:
        if isinstance(inputs, Mapping):
            model(**inputs)
        else:
            model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    except Exception as error:
        raise ValueError(
            f"{what}={_shown(inputs)} do not go through {type(model).__name__} ({error}): give what the model is "
            "called with, a tensor, a tuple or a dict"
        ) from error


def _shown(inputs: Any) -> str:
    return f"a tensor of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else repr(inputs)[:200]


def _examples(inputs: Any) -> int:
    """The size of the batch: of the first tensor."""
    given = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    first = next((one for one in given if isinstance(one, Tensor)), None)
    return 1 if first is None or first.dim() == 0 else max(len(first), 1)
