"""The widths of a model: its tensors cut to fewer positions, and the attributes of modules that say how wide they are.

What a shrunk model has that its layers' shapes do not tell, such as a number of heads, is kept in it as a plain dict,
which goes along when it is copied or pickled: by module, and attribute.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from prunewald.model.attention import FewerHeads
from prunewald.model.coupling import Ids
from prunewald.model.flow import Cut

Widths: TypeAlias = dict[str, dict[str, int]]  # by module: its attributes
_RECORD = "prunewald_widths"
CONFIG = "config"  # where the entries of a Hugging Face configuration are, beside the modules
_SHORT = ("h", "nh", "n_h")
_WHOLE = ("all_head_size", "split_size", "inner_dim", "inner_size", "qkv_dim", "attn_dim", "attention_dim")


def recorded(model: nn.Module) -> Widths | None:
    """What a shrunk model says of its widths; None where it was not shrunk."""
    found: Widths | None = vars(model).get(_RECORD)
    return found


def record(model: nn.Module, widths: Widths) -> None:
    """Keep in a model what its shapes do not tell, on top of what is there from before."""
    merged = {name: dict(own) for name, own in (recorded(model) or {}).items()}
    for name, own in widths.items():
        merged[name] = {**merged.get(name, {}), **own}
    setattr(model, _RECORD, merged)


@torch.no_grad()
def narrow_(model: nn.Module, kept: Mapping[str, Sequence[Tensor | None]]) -> None:
    """Keep these positions along each axis of parameters and buffers, all where there is None; layers know of it.

    Parameters stay the same objects, so what holds them holds them still.
    """
    places: dict[int, tuple[Tensor, Sequence[Tensor | None]]] = {}
    named: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    named.update(model.named_parameters(remove_duplicate=False))
    for name, axes in kept.items():
        places[id(named[name])] = named[name], axes
    layers = [m for m in model.modules() if any(id(x) in places for x in own_tensors(m))]
    before = {module: groups_of(module) for module in layers}
    for tensor, axes in places.values():
        tensor.grad = None
        tensor.data = cut(tensor.data, axes)
    for module in layers:
        _resize_(module, *before[module])


def cut(tensor: Tensor, axes: Sequence[Tensor | None]) -> Tensor:
    """These positions of a tensor along each axis; channels that lie last in memory stay there."""
    found = tensor
    for axis, at in enumerate(axes):
        if at is not None:
            found = found.index_select(axis, at.to(tensor.device))
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if last is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=last):
        return found
    return found.contiguous(memory_format=last)


def own_tensors(module: nn.Module) -> Iterable[Tensor]:
    """The parameters and buffers that are a module's own."""
    return (x for x in (*module._parameters.values(), *module._buffers.values()) if x is not None)


def groups_of(module: nn.Module) -> tuple[int, int]:
    """Of a grouped layer how many groups there are, and how many rows of its weight each has."""
    groups = (
        module.groups if isinstance(module, _ConvNd) else module.num_groups if isinstance(module, nn.GroupNorm) else 1
    )
    weight = module._parameters.get("weight")
    return int(groups), 1 if weight is None or groups == 1 else len(weight) // int(groups)


def _resize_(module: Any, groups: int, rows: int) -> None:
    """Tell a layer of the shape of its weight."""
    weight = module._parameters.get("weight")
    if isinstance(module, nn.MultiheadAttention):
        if module.out_proj.weight.shape[1] != module.embed_dim:
            module.__class__ = FewerHeads
        return
    if weight is None:
        return
    if groups > 1:
        groups = len(weight) // rows
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _ConvNd):
        module.groups = groups
        first, second = len(weight), weight.shape[1] * groups
        turned = isinstance(module, _ConvTransposeNd)
        module.in_channels, module.out_channels = (first, second) if turned else (second, first)
    elif isinstance(module, _NormBase):
        module.num_features = len(weight)
    elif isinstance(module, nn.GroupNorm):
        module.num_groups, module.num_channels = groups, len(weight)
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.embedding_dim = weight.shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(weight)
    elif type(module).__name__ == "Conv1D" and weight.dim() == 2:  # GPT-2's
        module.nx, module.nf = weight.shape


def set_widths_(model: nn.Module, widths: Widths) -> None:
    """Set attributes of modules, and entries of the configuration."""
    for name, own in widths.items():
        place = _place(model, name)
        for key, value in own.items():
            setattr(place, key, value)


def unfit_widths(model: nn.Module, widths: Widths) -> list[str]:
    """What a model has not that is among widths, in words: they are numbers that are there already, and no more."""
    found = []
    for name, own in widths.items():
        there = vars(_place(model, name) or nn.Module())
        found += [f"{name}.{key}" for key in own if type(there.get(key)) is not int]
    return [f"the file has the width {one!r}, which is no number in the model" for one in found]


def _place(model: nn.Module, name: str) -> Any:
    """Where widths are: a module, or the configuration; None where there is none."""
    return vars(model).get(CONFIG) if name == CONFIG else dict(model.named_modules()).get(name)


def widths_after(model: nn.Module, cuts: Iterable[Cut], goes: Callable[[Ids], NDArray[np.bool_]]) -> Widths:
    """The attributes that a view around attention reads, as they are when units have gone.

    Where an axis is cut into heads, a number of heads is an attribute with "head" in its name and that value; the
    whole axis, and a piece that is split off it, have names of their own.
    """
    found: Widths = {}
    for one in cuts:
        whole, part = goes(one.whole), goes(one.part)
        if not part.any() or not one.places:
            continue
        name = one.places[-1]
        module = model.get_submodule(name)
        for key, value in vars(module).items():
            if type(value) is not int:
                continue
            heads = key in _SHORT or ("head" in key and "dim" not in key and "size" not in key)
            if value == len(part) and (heads or "split" in key):
                found.setdefault(name, {})[key] = int((~part).sum())
            elif value == len(whole) and key in _WHOLE:
                found.setdefault(name, {})[key] = int((~whole).sum())
    return found
