"""A stream: symbols from 0 to 255 as bytes by the codec that needs the fewest, of those allowed.

Its first two bytes name the codec and the largest symbol; how many symbols there are, the reader must know. "Planes"
are numbers cut into their bits: bit 0 of all numbers, then bit 1 of all, and so on.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from prunewald.storage.codes import Bytes, ans, huffman
from prunewald.util.arguments import one_of

Codec = Literal["auto", "huffman", "ans", "raw"]

_RAW, _HUFFMAN, _ANS, _CONSTANT = range(4)
HEAD = 2  # codec, and the largest symbol
_CHUNK = 1 << 20  # symbols that are widened at a time: all of them at once could take eight times their memory


def allowed(codec: str) -> frozenset[str]:
    """The codecs that `codec` allows: raw always, and with "auto" ANS only where constriction is installed."""
    one_of("codec", codec, get_args(Codec))
    if codec == "auto":
        return frozenset({"raw", "huffman"} | ({"ans"} if ans.available() else set()))
    return frozenset({"raw", codec})


def encode(symbols: Bytes, codecs: frozenset[str]) -> bytes:
    """Write symbols by the codec that needs the fewest bytes; nothing at all for no symbols."""
    if not symbols.size:
        return b""
    counts = histogram(symbols)
    _, codec = cost(counts, codecs)
    head = bytes([codec, len(counts) - 1])
    if codec == _CONSTANT:
        return head
    if codec == _HUFFMAN:
        return head + huffman.encode(symbols, huffman.lengths(counts))
    if codec == _ANS:
        return head + ans.encode(symbols, ans.table(counts))
    width = _width(len(counts))
    return head + (symbols.tobytes() if width == 8 else write_planes(symbols, width))


def decode(data: Bytes, count: int) -> Bytes:
    """Read `count` symbols; a ValueError if the bytes are anything else."""
    if not count:
        if data.size:
            raise ValueError("bytes where nothing is coded")
        return np.zeros(0, np.uint8)
    if data.size < HEAD:
        raise ValueError("a code is cut short")
    codec, alphabet, body = int(data[0]), int(data[1]) + 1, data[HEAD:]
    if codec == _CONSTANT and not body.size:
        return np.full(count, alphabet - 1, np.uint8)
    if codec == _HUFFMAN:
        return huffman.decode(body, count, alphabet)
    if codec == _ANS:
        return ans.decode(body, count, alphabet)
    if codec != _RAW:
        raise ValueError(f"a code of an unknown kind, {codec}")
    width = _width(alphabet)
    if width == 8 and body.size != count:
        raise ValueError(f"{count} symbols of a byte each in {body.size} bytes")
    if width == 8:
        found = body
    else:
        found = np.zeros(count, np.uint8)
        read_planes(body, width, found)
    if (found >= alphabet).any():
        raise ValueError(f"a code has a symbol above {alphabet - 1}")
    return found


def cost(counts: NDArray[Any], codecs: frozenset[str]) -> tuple[int, int]:
    """About how many bytes symbols that come `counts` times take by the best of the codecs, and which one that is."""
    total = int(counts.sum())
    if np.count_nonzero(counts) < 2:
        return (HEAD, _CONSTANT) if total else (0, _CONSTANT)
    width = _width(len(counts))
    sizes = {_RAW: total if width == 8 else width * -(-total // 8)}
    if "huffman" in codecs:
        sizes[_HUFFMAN] = huffman.size(counts, huffman.lengths(counts))
    if "ans" in codecs:
        sizes[_ANS] = ans.size(counts, ans.table(counts))
    return min((size + HEAD, codec) for codec, size in sizes.items())


def histogram(symbols: Bytes) -> NDArray[np.int64]:
    """How often each symbol comes, from 0 to the largest there is."""
    counts = np.zeros(256, np.int64)
    for first in range(0, symbols.size, _CHUNK):  # bincount takes eight bytes for each symbol
        counts += np.bincount(symbols[first : first + _CHUNK], minlength=256)
    return np.trim_zeros(counts, "b")


def entropy(symbols: Bytes) -> float:
    """The order-0 entropy of all symbols together, in bits: no code for single symbols needs fewer."""
    counts = histogram(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / symbols.size)).sum()) + 0.0


def write_planes(numbers: NDArray[Any], width: int) -> bytes:
    """Write the lowest `width` bits of numbers as planes: each in whole bytes, the first number in the lowest bit."""
    planes = (np.packbits(numbers >> i & 1 != 0, bitorder="little") for i in range(width))
    return b"".join(plane.tobytes() for plane in planes)


def read_planes(data: Bytes, width: int, into: NDArray[Any]) -> None:
    """Read planes into the lowest `width` bits of numbers, which are 0 there."""
    each = -(-into.size // 8)
    if data.size != width * each:
        raise ValueError(f"{into.size} numbers of {width} bits take {width * each} bytes, not {data.size}")
    for i in range(width):
        for first in range(0, each, _CHUNK // 8):
            last = min(first + _CHUNK // 8, each)
            bits = np.unpackbits(data[i * each + first : i * each + last], bitorder="little")
            some = into[8 * first : 8 * last]
            if bits[some.size :].any():
                raise ValueError("padding bits are set")
            some |= np.left_shift(bits[: some.size], i, dtype=into.dtype)


def _width(alphabet: int) -> int:
    return (alphabet - 1).bit_length()
