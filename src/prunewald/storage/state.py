"""A state dict taken apart for the container, and put together again, bit for bit."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunewald.storage import masks as bitmask
from prunewald.storage.index import DTYPE_NAMES, DTYPES, Entry

# Roughly what a second part adds to the file's header, beside the tensor's name.
_PART_BYTES = 100


def pack(state: Mapping[str, Any], masks: Mapping[str, Tensor]) -> tuple[list[Entry], dict[str, Tensor]]:
    """Take a state dict apart into index entries and the tensors to store under their keys."""
    for name in masks:
        if name not in state:
            raise ValueError(
                f"there is a mask for {name!r}, which the model's state_dict does not have; "
                "pw.save(pruner.model, path) saves the model without its masks"
            )
    entries: list[Entry] = []
    parts: dict[str, Tensor] = {}
    for names in tied(state):
        tensor = _plain(state[names[0]])
        given = [_checked(name, tensor, masks[name]) for name in names if name in masks]
        mask = given[0] if given else _worthwhile(names[0], tensor)
        entry, stored = _split(names, tensor, None if mask is None or mask.all() else mask)
        entries.append(entry)
        parts |= stored
    return entries, parts


def unpack(entries: list[Entry], parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the state dict together; ValueError with the reason if index and tensors disagree."""
    named = {key for entry in entries for key in entry.parts().values()}
    if odd := sorted(named ^ parts.keys()):
        raise ValueError(f"index and stored tensors disagree about {odd[0]!r}")
    state: dict[str, Tensor] = {}
    for entry in entries:
        state |= dict.fromkeys(entry.names, _join(entry, parts))
    return state


def tied(state: Mapping[str, Any]) -> list[list[str]]:
    """Group a state dict's names by the memory they look at; ValueError for what no file can hold."""
    groups: dict[Any, list[str]] = {}
    for name, tensor in state.items():
        if reason := unfit(tensor):
            raise ValueError(f"cannot store {name!r}: it is {reason}")
        view = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        signs = (tensor.is_conj(), tensor.is_neg())
        groups.setdefault((view, signs) if tensor.numel() else name, []).append(name)
    return list(groups.values())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two CPU tensors of one dtype and shape are the same to the last bit."""
    return a is b or np.array_equal(_bits(a), _bits(b))


def unfit(tensor: Any) -> str | None:
    """Tell what a value is, if that is nothing a packed file can hold."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}, not a tensor"
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_quantized or tensor.layout != torch.strided:
        return f"a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}, not a plain dense tensor"
    if tensor.is_meta:
        return "on the meta device, without values"
    if tensor.dtype not in DTYPE_NAMES:
        return f"{tensor.dtype}, which safetensors does not have"
    return None


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # A bool can have other bytes than 0 and 1, when it is a view of something else.
    return tensor.view(torch.uint8) != 0 if tensor.dtype == torch.bool else tensor


def _bits(tensor: Tensor) -> NDArray[Any]:
    """View a contiguous CPU tensor as flat unsigned integers: there -0.0 is not 0 and NaN equals itself."""
    return tensor.reshape(-1).view(torch.uint8).numpy().view(f"u{tensor.itemsize}")


def _checked(name: str, tensor: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != tensor.shape:
        given = f"{mask.dtype} {tuple(mask.shape)}"
        raise ValueError(f"the mask of {name!r} is {given}, not bool {tuple(tensor.shape)}")
    mask = mask.detach().cpu().contiguous()
    alive = np.count_nonzero(_bits(tensor)[~mask.view(-1).numpy()])
    if alive:
        raise ValueError(f"{name!r} is not +0.0 at {alive} pruned places; call pruner.apply_() before saving")
    return mask


def _worthwhile(name: str, tensor: Tensor) -> Tensor | None:
    """Give the places of non-zero bits, if a mask and the values there take less than the whole."""
    places = _bits(tensor) != 0
    saved = (places.size - np.count_nonzero(places)) * tensor.itemsize
    if saved <= places.size / 8 + _PART_BYTES + len(name):
        return None
    return torch.from_numpy(places).view(tensor.shape)


def _split(names: list[str], tensor: Tensor, mask: Tensor | None) -> tuple[Entry, dict[str, Tensor]]:
    found: dict[str, Tensor] = {"dense": tensor}
    kept = None
    if mask is not None:
        values = _bits(tensor)[mask.view(-1).numpy()]
        found = {"values": torch.from_numpy(values.view(np.uint8)).view(tensor.dtype)}
        found["mask"] = bitmask.pack(mask)
        kept = len(values)
    entry = Entry(tuple(names), DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), kept)
    return entry, {key: found[role] for role, key in entry.parts().items()}


def _join(entry: Entry, parts: Mapping[str, Tensor]) -> Tensor:
    try:
        return _build(entry, parts)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{entry.names[0]!r}: {error}") from error


def _build(entry: Entry, parts: Mapping[str, Tensor]) -> Tensor:
    found = {role: parts[key] for role, key in entry.parts().items()}
    stored = found["dense"] if entry.kept is None else found["values"]
    shape = entry.shape if entry.kept is None else (entry.kept,)
    if DTYPE_NAMES.get(stored.dtype) != entry.dtype or stored.shape != shape:
        given = f"{stored.dtype} {tuple(stored.shape)}"
        raise ValueError(f"stored as {given}, where the index says {entry.dtype} {shape}")
    if stored.dtype == torch.bool and (_bits(stored) > 1).any():
        raise ValueError("bools with bytes other than 0 and 1")
    return stored if entry.kept is None else _scatter(entry, stored, found["mask"])


def _scatter(entry: Entry, values: Tensor, packed: Tensor) -> Tensor:
    # The mask is checked against its bytes first, so what a lying shape can allocate is bounded by the file.
    mask = bitmask.unpack(packed, math.prod(entry.shape)).numpy()
    places = np.count_nonzero(mask)
    if places != entry.kept:
        raise ValueError(f"{entry.kept} values for a mask of {places} places")
    whole = np.zeros(mask.size, dtype=f"u{values.itemsize}")
    whole[mask] = _bits(values)
    return torch.from_numpy(whole.view(np.uint8)).view(DTYPES[entry.dtype]).reshape(entry.shape)
