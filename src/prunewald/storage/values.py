"""The values of a tensor's survivors as bytes.

They are stored as they are, in a shorter dtype, or as codes: of the few values in a codebook, or of whole multiples of
a scale. A value of several bytes is coded byte by byte: the first bytes of all values, then the second of all, ...
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prunewald.core.kmeans import MAX_SIZE, kmeans_1d
from prunewald.storage.codes import Bytes, streams
from prunewald.storage.index import CODED, DTYPE_NAMES, DTYPES

LOSSY = ("float32", "float16", "bfloat16", "int8", "int4", "codebook")
FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_LEVELS = {"int8": 127, "int4": 7}  # the largest whole multiple of the scale
_PEEK = 4096  # values that are looked at before all are: most tensors have more than a codebook holds among the first
_PLAIN, _PLANES = range(2)


@dataclass(frozen=True)
class Coded:
    """Values as a file stores them."""

    kind: str  # one of DTYPES, or of CODED
    book: bytes  # the codebook
    body: bytes  # the values, or their codes

    def __len__(self) -> int:
        return len(self.book) + len(self.body)


def lossless(values: Tensor, codecs: frozenset[str]) -> Coded:
    """Write values bit for bit, as a codebook where they are few and that is smaller."""
    bits = as_bits(values)
    book = np.unique(bits[:_PEEK])
    book = np.unique(bits) if 0 < book.size <= MAX_SIZE else book
    if not 0 < book.size <= MAX_SIZE:
        return Coded(DTYPE_NAMES[values.dtype], b"", _planes(bits, codecs))
    codes = np.searchsorted(book, bits).astype(np.uint8)
    coded = Coded("codebook", book.tobytes(), streams.encode(codes, codecs))
    if len(coded.book) < bits.nbytes / 8:  # the bytes of few values are no easier to code than the values
        return coded
    return min(Coded(DTYPE_NAMES[values.dtype], b"", _planes(bits, codecs)), coded, key=len)


def lossy(values: Tensor, what: str, size: int, codecs: frozenset[str]) -> Coded:
    """Write floating-point values in the form `what`, one of LOSSY; a ValueError if that cannot hold them."""
    if what in FLOATS:
        return _narrowed(values, DTYPES[FLOATS[what]], codecs)
    if not torch.isfinite(values).all():
        raise ValueError(f"some values are infinite or NaN, which values={what!r} cannot hold")
    if what == "codebook":
        book, codes = kmeans_1d(values, size)
        return Coded("codebook", as_bits(book).tobytes(), streams.encode(codes.numpy(), codecs))
    return _linear(values, what, codecs)


def symbols(kind: str, book: int, body: Bytes, count: int) -> list[Bytes]:
    """Read what is coded: codes into a codebook of `book` values, or the first bytes of all values, the second, ..."""
    if kind in CODED:
        codes = streams.decode(body, count)
        if count and codes.max() >= book:
            raise ValueError(f"a code beyond a codebook of {book} values")
        return [codes]
    width = DTYPES[kind].itemsize
    if not body.size or body[0] > _PLANES:
        raise ValueError("values of an unknown kind")
    if body[0] == _PLAIN:
        if body.size != 1 + count * width:
            raise ValueError(f"{count} values of {kind} take {count * width} bytes, not {body.size - 1}")
        return list(body[1:].reshape(count, width).T)
    start = 1 + 8 * width
    if body.size < start:
        raise ValueError("values are cut short")
    sizes = [int.from_bytes(body[at : at + 8].tobytes(), "little") for at in range(1, start, 8)]
    if sum(sizes) != body.size - start:
        raise ValueError("values are cut short, or longer than they say")
    ends = np.cumsum([start, *sizes])
    return [streams.decode(body[a:b], count) for a, b in pairwise(ends)]


def decode(kind: str, book: Bytes, body: Bytes, count: int, dtype: torch.dtype) -> Tensor:
    """Read `count` values of a tensor of `dtype`; a ValueError if the bytes are anything else."""
    if kind in CODED:
        shared = _book(kind, book, dtype)
        (codes,) = symbols(kind, shared.numel(), body, count)
        return from_bits(as_bits(shared)[codes], dtype)
    if book.size:
        raise ValueError("a codebook where none is used")
    stored = DTYPES[kind]
    if stored != dtype and not narrower(stored, dtype):
        raise ValueError(f"values of {kind} for a tensor of {DTYPE_NAMES[dtype]}")
    planes = symbols(kind, 0, body, count)
    found = np.empty((count, len(planes)), np.uint8)
    for i, plane in enumerate(planes):
        found[:, i] = plane
    return from_bits(found.reshape(-1), stored).to(dtype)


def book_size(kind: str, book: int, dtype: torch.dtype) -> int:
    """How many values a codebook of `book` bytes has."""
    return max(book - 4, 0) if kind == "linear" else book // dtype.itemsize


def narrower(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether values of `dtype` may be stored in a shorter float dtype."""
    fit = dtype.is_floating_point and dtype.itemsize in (4, 8) and stored.is_floating_point
    return fit and DTYPE_NAMES.get(stored) in FLOATS.values() and stored.itemsize < dtype.itemsize


def as_bits(tensor: Tensor) -> NDArray[Any]:
    """View a contiguous CPU tensor as flat unsigned integers: then -0.0 is not 0, and NaN equals itself."""
    return tensor.reshape(-1).view(torch.uint8).numpy().view(f"u{tensor.itemsize}")


def from_bits(bits: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """View flat unsigned integers as a flat tensor: undoes `as_bits`."""
    if not bits.size:
        return torch.empty(0, dtype=dtype, device="cpu")  # which a view of no bytes cannot always be
    return torch.from_numpy(bits.view(np.uint8)).view(dtype)


def _planes(bits: NDArray[Any], codecs: frozenset[str]) -> bytes:
    """Write values as they are, or byte by byte by the codecs, where that is smaller."""
    plain = bytes([_PLAIN]) + bits.tobytes()
    if codecs == {"raw"} or not bits.size:
        return plain
    planes = bits.view(np.uint8).reshape(bits.size, -1).T
    coded = [streams.encode(np.ascontiguousarray(plane), codecs) for plane in planes]
    whole = bytes([_PLANES]) + b"".join(len(one).to_bytes(8, "little") for one in coded) + b"".join(coded)
    return min(plain, whole, key=len)


def _narrowed(values: Tensor, dtype: torch.dtype, codecs: frozenset[str]) -> Coded:
    if not narrower(dtype, values.dtype):
        return lossless(values, codecs)
    cut = values.to(dtype)
    if (torch.isinf(cut) & ~torch.isinf(values)).any():
        raise ValueError(f"some values are too large for {dtype}")
    return Coded(DTYPE_NAMES[dtype], b"", _planes(as_bits(cut), codecs))


def _linear(values: Tensor, what: str, codecs: frozenset[str]) -> Coded:
    """Write values as whole multiples of a scale, the largest of them at the last level."""
    top = _LEVELS[what]
    scale = values.abs().max().to(torch.float32) / top if values.numel() else torch.ones((), device="cpu")
    if torch.isinf(scale):
        raise ValueError(f"some values are too large for values={what!r}")
    scale = torch.where(scale == 0, 1.0, scale)
    steps = torch.clamp(torch.round(values.to(torch.float64) / scale.double()), -top, top).to(torch.int8).numpy()
    levels = np.unique(steps)
    places = np.searchsorted(levels, steps).astype(np.uint8)
    return Coded("linear", as_bits(scale).tobytes() + levels.tobytes(), streams.encode(places, codecs))


def _book(kind: str, book: Bytes, dtype: torch.dtype) -> Tensor:
    if kind == "codebook":
        if book.size % dtype.itemsize or book.size > MAX_SIZE * dtype.itemsize:
            raise ValueError(f"a codebook of {book.size} bytes")
        return from_bits(book.copy(), dtype)
    if not 4 <= book.size <= 4 + MAX_SIZE or not dtype.is_floating_point:
        raise ValueError(f"levels in {book.size} bytes, for {DTYPE_NAMES[dtype]}")
    scale, levels = from_bits(book[:4].copy(), torch.float32), from_bits(book[4:].copy(), torch.int8)
    return (levels.to(torch.float32) * scale).to(dtype)
