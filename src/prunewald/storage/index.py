"""The index: which tensors a packed file holds, and how each is stored."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

# safetensors' names for what it can hold.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One stored tensor: all names it goes by (tied ones share an entry), its dtype and shape.

    `kept` is the number of values beside the mask, or None where the tensor is stored dense.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    kept: int | None

    def parts(self) -> dict[str, str]:
        """Give the keys of this tensor's parts in the container, by role."""
        roles = ("dense",) if self.kept is None else ("values", "mask")
        return {role: f"{role}/{self.names[0]}" for role in roles}


def dump(entries: Sequence[Entry]) -> str:
    """Write the index as JSON."""
    return json.dumps([asdict(entry) for entry in entries], ensure_ascii=False, separators=(",", ":"))


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


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from pairs, as json.loads does, but refuse a key that comes twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the name {key!r} comes twice")
        found[key] = value
    return found


def _entry(row: Any) -> Entry:
    match row:
        case {"names": list(names), "dtype": str(dtype), "shape": list(shape), "kept": kept, **rest}:
            named = names and all(isinstance(name, str) for name in names)
            sized = all(is_count(size) for size in shape) and (kept is None or is_count(kept))
            if named and sized and dtype in DTYPES and not rest:
                return Entry(tuple(names), dtype, tuple(shape), kept)
    raise ValueError(f"the index has an entry that makes no sense: {str(row)[:200]}")


def is_count(value: Any) -> bool:
    """Tell whether a value from JSON is a size or a number of things."""
    return type(value) is int and 0 <= value < 2**63
