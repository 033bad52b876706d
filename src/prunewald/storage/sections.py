"""One tensor as the bytes of its three sections, positions, codebook and values; and back."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prunewald.storage import positions, values
from prunewald.storage.codes import streams
from prunewald.storage.index import DTYPE_NAMES, DTYPES, Packing, TensorEntry
from prunewald.storage.options import TensorOptions
from prunewald.storage.values import as_bits, from_bits

# About how many bytes of index a packed tensor costs, and how many more the places of its survivors must save.
_MORE_INDEX = 60
_MORE_PLACES = 20
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def pack(names: list[str], tensor: Tensor, mask: Tensor | None, options: TensorOptions) -> tuple[TensorEntry, Tensor]:
    """Store a plain CPU tensor: packed where its mask prunes anything, else dense or packed, whichever is smaller."""
    plain = TensorEntry(tuple(names), DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))
    flat = None if mask is None or mask.all() else mask.reshape(-1).numpy()
    chosen = flat if flat is not None else _places(tensor, options)
    packed, data = _pack(tensor, chosen, options)
    if flat is None and len(data) + _MORE_INDEX >= tensor.nbytes:
        return plain, tensor
    stored = torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))
    return replace(plain, packed=packed), stored


def unpack(entry: TensorEntry, stored: Tensor) -> Tensor:
    """Put a tensor together; a ValueError with the reason if the bytes are not those of its entry.

    A few bytes can stand for a large tensor: that its size is bearable must be known before.
    """
    try:
        if entry.packed is None:
            return _dense(entry, stored)
        return _unpack(entry, entry.packed, stored)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{entry.names[0]!r}: {error}") from error


def split(entry: TensorEntry, packed: Packing, stored: Tensor) -> tuple[NDArray[np.uint8], ...]:
    """Cut the bytes of a packed tensor into positions, codebook and values."""
    if stored.dtype != torch.uint8 or stored.shape != (sum(packed.bytes),):
        given = f"{stored.dtype} {tuple(stored.shape)}"
        raise ValueError(f"stored as {given}, where the index says {sum(packed.bytes)} bytes")
    if packed.kept > entry.count:
        raise ValueError(f"{packed.kept} values for {entry.count} places")
    first, second, _ = packed.bytes
    return tuple(np.split(stored.numpy(), [first, first + second]))


def bound(entry: TensorEntry, stored: Tensor) -> float:
    """The bits that no code of independent symbols goes below: of places, of values or their codes, of the codebook."""
    if entry.packed is None:
        planes = as_bits(stored).view(np.uint8).reshape(-1, stored.itemsize).T
        return sum(map(streams.entropy, planes)) if entry.count else 0.0
    packed = entry.packed
    _, book, body = split(entry, packed, stored)
    shared = values.book_size(packed.values, book.size, DTYPES[entry.dtype])
    found = values.symbols(packed.values, shared, body, packed.kept)
    coded = sum(map(streams.entropy, found)) if packed.kept else 0.0
    return positions.bound(entry.count, packed.kept) + coded + 8 * book.size


def _pack(tensor: Tensor, mask: NDArray[np.bool_] | None, options: TensorOptions) -> tuple[Packing, bytes]:
    bits = as_bits(tensor)
    kept = tensor.reshape(-1) if mask is None else from_bits(bits[mask], tensor.dtype)
    if options.values is not None and tensor.dtype in _FLOATS:
        coded = values.lossy(kept, options.values, options.size, options.codecs)
    else:
        coded = values.lossless(kept, options.codecs)
    where = b"" if mask is None else positions.encode(mask, options.places)
    sizes = (len(where), len(coded.book), len(coded.body))
    return Packing(kept.numel(), coded.kind, sizes), where + coded.book + coded.body


def _places(tensor: Tensor, options: TensorOptions) -> NDArray[np.bool_] | None:
    """Where a tensor's bits are not zero, if a mask of that is worth its bytes, or zeros must stay zeros; else None."""
    places: NDArray[np.bool_] = as_bits(tensor) != 0
    zeros = places.size - int(np.count_nonzero(places))
    room = positions.bound(places.size, zeros) / 8 + _MORE_PLACES
    if zeros and (options.values is not None or zeros * tensor.itemsize > room):
        return places
    return None


def _dense(entry: TensorEntry, stored: Tensor) -> Tensor:
    if DTYPE_NAMES.get(stored.dtype) != entry.dtype or stored.shape != entry.shape:
        given = f"{stored.dtype} {tuple(stored.shape)}"
        raise ValueError(f"stored as {given}, where the index says {entry.dtype} {entry.shape}")
    return _bools(stored)


def _unpack(entry: TensorEntry, packed: Packing, stored: Tensor) -> Tensor:
    dtype = DTYPES[entry.dtype]
    where, book, body = split(entry, packed, stored)
    # The survivors first: for them the file must have bytes, so an entry that lies is found before much is allocated.
    kept = values.decode(packed.values, book, body, packed.kept, dtype)
    mask = positions.decode(where, entry.count, packed.kept)
    if packed.kept == entry.count:
        return _bools(kept.reshape(entry.shape))
    whole = np.zeros(entry.count, dtype=f"u{dtype.itemsize}")
    whole[mask] = as_bits(kept)
    return _bools(from_bits(whole, dtype).reshape(entry.shape))


def _bools(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool and (as_bits(tensor) > 1).any():
        raise ValueError("bools with bytes other than 0 and 1")
    return tensor
