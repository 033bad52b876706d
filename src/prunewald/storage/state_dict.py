"""A state dict taken apart into index entries and stored tensors, and put together again."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunewald.model.masking import check_masks
from prunewald.storage import sections
from prunewald.storage.index import DTYPE_NAMES, MAX_DIMENSIONS, RESERVED, TensorEntry, check_length
from prunewald.storage.options import Chooser
from prunewald.storage.values import as_bits


def pack(
    state: Mapping[str, Any], masks: Mapping[str, Tensor], options: Chooser
) -> tuple[list[TensorEntry], dict[str, Tensor]]:
    """Take a state dict apart: into index entries, and the tensors to store by their keys."""
    check_names(state)
    groups = tied(state)
    for name in masks:
        if name not in state:
            raise ValueError(
                f"there is a mask for {name!r}, which the model's state_dict does not have; "
                "pw.save(pruner.model, path) saves the model without its masks"
            )
    check_masks(masks, state)
    entries: list[TensorEntry] = []
    stored: dict[str, Tensor] = {}
    for names in groups:
        tensor = _plain(state[names[0]])
        given = [_zero_outside(name, tensor, masks[name]) for name in names if name in masks]
        try:
            entry, data = sections.pack(names, tensor, given[0] if given else None, options(names))
        except ValueError as error:
            raise ValueError(f"{names[0]!r}: {error}") from error
        entries.append(entry)
        stored[entry.key] = data
    return entries, stored


def unpack(entries: Sequence[TensorEntry], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the state dict together; a ValueError with the reason if index and stored tensors disagree."""
    check_keys({entry.key for entry in entries}, stored)
    state: dict[str, Tensor] = {}
    for entry in entries:
        state |= dict.fromkeys(entry.names, sections.unpack(entry, stored[entry.key]))
    return state


def check_keys(keys: set[str], stored: Mapping[str, Tensor]) -> None:
    """Refuse an index that gives other tensors than are stored."""
    if odd := sorted(keys ^ stored.keys()):
        raise ValueError(f"index and stored tensors disagree about {odd[0]!r}")


def check_names(state: Mapping[Any, Any]) -> None:
    """Refuse a state dict with a key that can name no tensor in a file."""
    for name in state:
        if not isinstance(name, str):
            raise ValueError(f"cannot store {name!r}: it is a {type(name).__name__}, and a tensor's name is a string")
        if name == RESERVED:
            raise ValueError(f"cannot store {name!r}: safetensors keeps this name for itself, give the tensor another")
        check_length(name)


def tied(state: Mapping[str, Any]) -> list[list[str]]:
    """Group a state dict's names by the memory they look at; a ValueError for what no file can hold."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in state.items():
        if reason := unfit(tensor):
            raise ValueError(f"cannot store {name!r}: it is {reason}")
        view = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        signs = (tensor.is_conj(), tensor.is_neg())
        groups.setdefault((view, signs) if tensor.numel() else name, []).append(name)
    return list(groups.values())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two CPU tensors of one dtype and shape are the same to the last bit."""
    return a is b or np.array_equal(as_bits(a), as_bits(b))


def unfit(tensor: Any) -> str | None:
    """What a value is, in words, if a packed file cannot hold it; None if it can."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}, not a tensor"
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_quantized or tensor.layout != torch.strided:
        return f"a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, not a plain dense tensor"
    if tensor.is_meta:
        return "on the meta device, without values"
    if tensor.dim() > MAX_DIMENSIONS:
        return f"of {tensor.dim()} dimensions, and at most {MAX_DIMENSIONS} go"
    if tensor.dtype not in DTYPE_NAMES:
        return f"{tensor.dtype}, which safetensors does not have"
    return None


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # A bool can have other bytes than 0 and 1, when it is a view of something else.
    return tensor.view(torch.uint8) != 0 if tensor.dtype == torch.bool else tensor


def _zero_outside(name: str, tensor: Tensor, mask: Tensor) -> Tensor:
    """The mask on the CPU; a ValueError if the tensor is anything but +0.0 where it is pruned."""
    mask = mask.detach().cpu().contiguous()
    alive = np.count_nonzero(as_bits(tensor)[~mask.view(-1).numpy()])
    if alive:
        raise ValueError(f"{name!r} is not +0.0 at {alive} pruned places; call pruner.apply_() before saving")
    return mask
