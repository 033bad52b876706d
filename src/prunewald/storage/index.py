"""The index of a packed file: JSON that says which tensors it holds, and how each is stored."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from prunewald.model.widths import Widths

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

# Values are stored in one of the dtypes, or as codes: of the entries of a codebook, or of whole multiples of a scale.
CODED = ("codebook", "linear")

# What an index may ask of a reader: products of sizes and columns of names cost more than the bytes that spell them.
MAX_DIMENSIONS = 64
MAX_NAME = 4096  # bytes
RESERVED = "__metadata__"  # safetensors keeps it for itself, so that no dense file can hold a tensor of this name


@dataclass(frozen=True)
class Packing:
    """How a packed tensor is stored: how many values survive, in which form, and how long its three sections are."""

    kept: int
    values: str  # one of DTYPES, or of CODED
    bytes: tuple[int, int, int]  # positions, codebook, values


@dataclass(frozen=True)
class TensorEntry:
    """One tensor in the index. Tied tensors share an entry and all their names; without `packed` it is stored dense."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    packed: Packing | None = None

    @property
    def key(self) -> str:
        """The key of this tensor in the container."""
        return f"{'dense' if self.packed is None else 'packed'}/{self.names[0]}"

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that the tensor takes in memory."""
        return self.count * DTYPES[self.dtype].itemsize

    def to_dict(self) -> dict[str, Any]:
        """The entry as the index spells it."""
        plain = {"names": self.names, "dtype": self.dtype, "shape": self.shape}
        return plain if self.packed is None else plain | asdict(self.packed)


def dump(entries: Sequence[TensorEntry], report: Any = None, widths: Widths | None = None) -> str:
    """Write the index as JSON."""
    found: dict[str, Any] = {"tensors": [entry.to_dict() for entry in entries]}
    if report is not None:
        found["report"] = report
    if widths is not None:
        found["widths"] = widths
    return compact(found)


def parse(text: str) -> tuple[list[TensorEntry], Any]:
    """Read entries and report; a ValueError with the reason if the text is not the index of a model."""
    match json.loads(text, object_pairs_hook=unique):
        case {"masks": _}:
            raise ValueError("this file holds masks, not a model: read it with pw.masks.load")
        case {"tensors": list(rows), **rest} if rest.keys() <= {"report", "widths"}:
            entries = [_entry(row) for row in rows]
            unique([(name, entry) for entry in entries for name in entry.names])
            return entries, rest.get("report")
    raise ValueError("the index is neither one of a model nor one of masks")


def parse_widths(text: str) -> Widths | None:
    """What the index of a shrunk model says of its widths, by module and attribute; None where it was not shrunk."""
    match json.loads(text, object_pairs_hook=unique):
        case {"widths": dict(widths)}:
            for name, own in widths.items():
                check_length(name)
                if not isinstance(own, dict) or not all(map(is_count, own.values())):
                    raise nonsense({name: own})
            return widths
    return None


def compact(data: Any) -> str:
    """JSON without spaces."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from pairs, as json.loads does, but refuse a key that comes twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the name {key!r} comes twice")
        found[key] = value
    return found


def _entry(row: Any) -> TensorEntry:
    match row:
        case {"names": list(names), "dtype": str(dtype), "shape": list(shape), **rest}:
            named = names and all(isinstance(name, str) for name in names)
            if named and all(map(is_count, shape)) and dtype in DTYPES:
                check_shape(shape)
                for name in names:
                    check_length(name)
                return TensorEntry(tuple(names), dtype, tuple(shape), _packing(rest) if rest else None)
    raise nonsense(row)


def _packing(rest: dict[Any, Any]) -> Packing:
    match rest:
        case {"kept": kept, "values": str(values), "bytes": [p, c, v], **more}:
            if all(map(is_count, (kept, p, c, v))) and (values in DTYPES or values in CODED) and not more:
                return Packing(kept, values, (p, c, v))
    raise nonsense(rest)


def nonsense(row: Any) -> ValueError:
    """The error to raise for an entry of an index that cannot be one."""
    return ValueError(f"the index has an entry that makes no sense: {str(row)[:200]}")


def check_length(name: str) -> None:
    """Refuse a name that is longer than an index may have."""
    size = len(name.encode(errors="surrogatepass"))
    if size > MAX_NAME:
        raise ValueError(f"the name {name[:20] + '...'!r} takes {size:,} bytes: at most {MAX_NAME:,} go")


def check_shape(shape: Sequence[int]) -> None:
    """Refuse a shape of more dimensions than an index may have."""
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a shape of {len(shape):,} dimensions: at most {MAX_DIMENSIONS} go")


def is_count(value: Any) -> bool:
    """Whether a value from JSON is a size, or a number of things."""
    return type(value) is int and 0 <= value < 2**63
