"""Where a tensor's survivors are, near the entropy log2 C(n, k): the bits of its mask, or the gaps between places.

The gaps between random places are geometric, and are cut in two as by Golomb (1966) and Rice (1979): the low bits,
which are as good as random, are stored as they are, and the rest is a symbol for `streams`.
"""

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from prunewald.storage.codes import Bytes, streams
from prunewald.util.arguments import one_of

Positions = Literal["auto", "gaps", "ans", "bits"]
Mask = NDArray[np.bool_]

_BITS, _KEPT, _PRUNED = range(3)
_ESCAPE = 255  # a symbol that adds so much to the one after it
_HEAD = 10  # bytes for the kind, the number of low bits, the number of escapes


class PlaceCodecs(NamedTuple):
    """The codecs that may code the bits of a mask, and those that may code gaps; an empty set rules a form out."""

    bits: frozenset[str]
    gaps: frozenset[str]


def allowed(positions: str, codec: str) -> PlaceCodecs:
    """The codecs that these options of `save` allow for places."""
    one_of("positions", positions, get_args(Positions))
    if positions == "bits" or (positions == "auto" and codec == "raw"):
        return PlaceCodecs(frozenset({"raw"}), frozenset())
    if positions == "gaps":
        return PlaceCodecs(frozenset(), frozenset({"huffman"}))
    found = streams.allowed(codec if positions == "auto" else positions)
    return PlaceCodecs(found, found)


def bound(count: int, kept: int) -> float:
    """The bits that `kept` places drawn at random among `count` need: log2 C(count, kept)."""
    return (math.lgamma(count + 1) - math.lgamma(kept + 1) - math.lgamma(count - kept + 1)) / math.log(2) + 0.0


def encode(mask: Mask, codecs: PlaceCodecs) -> bytes:
    """Write a flat mask in the smaller form; nothing at all for one that is all True or all False."""
    kept = int(np.count_nonzero(mask))
    if kept in (0, mask.size):
        return b""
    found = []
    if codecs.bits:
        packed = np.packbits(mask, bitorder="little")
        size, _ = streams.cost(streams.histogram(packed), codecs.bits)
        found.append((size + 1, lambda: bytes([_BITS]) + streams.encode(packed, codecs.bits)))
    if codecs.gaps:
        kind = _rarer(mask.size, kept)
        gaps = np.diff(np.flatnonzero(mask == (kind == _KEPT)), prepend=-1) - 1
        size, low = min((_cost(gaps, low, codecs.gaps), low) for low in _low_bits(gaps))
        found.append((size, lambda: _write(kind, gaps, low, codecs.gaps)))
    return min(found, key=lambda way: way[0])[1]()


def decode(data: Bytes, count: int, kept: int) -> Mask:
    """Read a flat mask of `count` elements, `kept` of them True; a ValueError if the bytes are anything else."""
    if not 0 <= kept <= count:
        raise ValueError(f"{kept} places of {count}")
    if kept in (0, count):
        if data.size:
            raise ValueError("positions where there is no choice")
        return np.full(count, kept > 0)
    if not data.size or data[0] > _PRUNED:
        raise ValueError("positions of an unknown kind" if data.size else "positions are missing")
    if data[0] == _BITS:
        return _from_bits(streams.decode(data[1:], -(-count // 8)), count, kept)
    if data[0] != _rarer(count, kept):
        raise ValueError(f"gaps between the more frequent of {kept} kept and {count - kept} pruned")
    mask = np.full(count, data[0] == _PRUNED)
    mask[_places(data, count, min(kept, count - kept))] = data[0] == _KEPT
    return mask


def _rarer(count: int, kept: int) -> int:
    """Of which places the gaps are stored: there are fewer of them, so it takes fewer bytes."""
    return _KEPT if 2 * kept <= count else _PRUNED


def _from_bits(packed: Bytes, count: int, kept: int) -> Mask:
    bits = np.unpackbits(packed, bitorder="little")
    if bits[count:].any():
        raise ValueError(f"a mask of {count} elements has padding bits set")
    if (places := int(np.count_nonzero(bits))) != kept:
        raise ValueError(f"{kept} values for a mask of {places} places")
    return bits[:count].view(np.bool_)


def _low_bits(gaps: NDArray[np.int64]) -> range:
    """How many low bits to try: as many as the mean gap has, down to four fewer."""
    most = int(gaps.mean()).bit_length()
    return range(max(0, most - 4), most + 1)


def _cost(gaps: NDArray[np.int64], low: int, codecs: frozenset[str]) -> int:
    """About how many bytes `_write` takes."""
    symbols = gaps >> low
    escapes = int((symbols // _ESCAPE).sum())
    counts = np.bincount(symbols % _ESCAPE, minlength=_ESCAPE + 1 if escapes else 0)
    if escapes:
        counts[_ESCAPE] = escapes
    return _HEAD + low * -(-gaps.size // 8) + streams.cost(counts, codecs)[0]


def _write(kind: int, gaps: NDArray[np.int64], low: int, codecs: frozenset[str]) -> bytes:
    symbols = gaps >> low
    escapes = symbols // _ESCAPE
    coded = np.full(gaps.size + int(escapes.sum()), _ESCAPE, np.uint8)
    coded[np.cumsum(escapes + 1) - 1] = symbols % _ESCAPE
    head = bytes([kind, low]) + int(escapes.sum()).to_bytes(8, "little")
    return head + streams.write_planes(gaps & ((1 << low) - 1), low) + streams.encode(coded, codecs)


def _places(data: Bytes, count: int, coded: int) -> NDArray[Any]:
    """Read `coded` places below `count`, in rising order."""
    if data.size < _HEAD:
        raise ValueError("positions are cut short")
    low, escapes = int(data[1]), int.from_bytes(data[2:_HEAD].tobytes(), "little")
    end = _HEAD + low * -(-coded // 8)
    if low > 62 or escapes * _ESCAPE << low > count or data.size < end:
        raise ValueError("positions beyond the tensor")
    symbols = streams.decode(data[end:], coded + escapes)
    more = np.flatnonzero(symbols == _ESCAPE)
    if more.size != escapes or symbols[-1] == _ESCAPE:
        raise ValueError(f"{symbols.size - more.size} places, where {coded} are said to be")
    gaps = (symbols[symbols != _ESCAPE] if escapes else symbols).astype(np.int64)
    np.add.at(gaps, more - np.arange(escapes), _ESCAPE)  # of the place that each escape belongs to
    if int(gaps.max()) > count >> low:
        raise ValueError("positions beyond the tensor")
    if low:
        gaps <<= low
        streams.read_planes(data[_HEAD:end], low, gaps)
    gaps += 1
    if gaps.sum(dtype=np.float64) > count:
        raise ValueError("positions beyond the tensor")
    np.cumsum(gaps, out=gaps)
    gaps -= 1
    return gaps
