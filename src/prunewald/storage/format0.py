"""Reading packed files of format 0: survivors as they are, beside a mask of bits."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunewald.storage import masks as bitmask
from prunewald.storage.index import DTYPE_NAMES, DTYPES, is_count, nonsense, unique
from prunewald.storage.values import as_bits, from_bits


@dataclass(frozen=True)
class Entry:
    """One stored tensor. `kept` is the number of values beside the mask, or None where it is stored dense."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    kept: int | None

    @property
    def nbytes(self) -> int:
        """The bytes that the tensor takes in memory."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def parts(self) -> dict[str, str]:
        """Give the keys of this tensor's parts in the container, by role."""
        roles = ("dense",) if self.kept is None else ("values", "mask")
        return {role: f"{role}/{self.names[0]}" for role in roles}


def parse(text: str) -> list[Entry]:
    """Read an index; ValueError with the reason if it is not one."""
    rows = json.loads(text, object_pairs_hook=unique)
    if isinstance(rows, dict) and "masks" in rows:
        raise ValueError("this file holds masks, not a model: read it with pw.masks.load")
    if not isinstance(rows, list):
        raise ValueError("the index is not a list")
    entries = [_entry(row) for row in rows]
    unique([(name, entry) for entry in entries for name in entry.names])
    return entries


def unpack(entries: list[Entry], parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the state dict together; ValueError with the reason if index and tensors disagree."""
    named = {key for entry in entries for key in entry.parts().values()}
    if odd := sorted(named ^ parts.keys()):
        raise ValueError(f"index and stored tensors disagree about {odd[0]!r}")
    state: dict[str, Tensor] = {}
    for entry in entries:
        state |= dict.fromkeys(entry.names, _join(entry, parts))
    return state


def _entry(row: Any) -> Entry:
    match row:
        case {"names": list(names), "dtype": str(dtype), "shape": list(shape), "kept": kept, **rest}:
            named = names and all(isinstance(name, str) for name in names)
            sized = all(is_count(size) for size in shape) and (kept is None or is_count(kept))
            if named and sized and dtype in DTYPES and not rest:
                return Entry(tuple(names), dtype, tuple(shape), kept)
    raise nonsense(row)


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
    if stored.dtype == torch.bool and (as_bits(stored) > 1).any():
        raise ValueError("bools with bytes other than 0 and 1")
    return stored if entry.kept is None else _scatter(entry, stored, found["mask"])


def _scatter(entry: Entry, values: Tensor, packed: Tensor) -> Tensor:
    # The mask is checked against its bytes first, so what a lying shape can allocate is bounded by the file.
    mask = bitmask.unpack(packed, math.prod(entry.shape)).numpy()
    places = np.count_nonzero(mask)
    if places != entry.kept:
        raise ValueError(f"{entry.kept} values for a mask of {places} places")
    whole = np.zeros(mask.size, dtype=f"u{values.itemsize}")
    whole[mask] = as_bits(values)
    return from_bits(whole, DTYPES[entry.dtype]).reshape(entry.shape)
