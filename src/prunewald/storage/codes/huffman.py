"""Canonical Huffman codes (Huffman 1952), cut into pieces that are decoded side by side, so that numpy is fast enough.

A code is given by its lengths in bits, one for each symbol, 0 for a symbol that never comes.
"""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prunewald.storage.codes import Bytes

MAX_BITS = 12  # of one code
MAX_STEPS = 4096  # symbols in a piece
_MIN_STEPS, _PIECES = 512, 64
_BLOCK = 1 << 15  # symbols that are written at a time


def lengths(counts: NDArray[Any]) -> Bytes:
    """Code lengths, the best or nearly, of at most MAX_BITS, for symbols that come `counts` times; two or more must."""
    weights = np.asarray(counts, np.int64)
    while (found := _huffman(weights)).max() > MAX_BITS:
        weights = np.where(weights > 0, 1 + weights // 2, 0)  # flatter, until the rarest have short enough codes
    return found


def size(counts: NDArray[Any], code: Bytes) -> int:
    """How many bytes `encode` takes for symbols that come `counts` times."""
    total = int(counts.sum())
    bits = int((counts * code.astype(np.int64)).sum())
    return (len(code) + 1) // 2 + 2 + 2 * _pieces(total, _steps(total)) + (bits + 7) // 8


def encode(symbols: Bytes, code: Bytes) -> bytes:
    """Write the code lengths, the number of symbols in a piece, the bits of each piece, and the codes in a row."""
    steps = _steps(symbols.size)
    pieces = np.add.reduceat(code[symbols], np.arange(0, symbols.size, steps), dtype=np.int64)
    table = np.pad(code, (0, len(code) % 2))
    head = (table[0::2] | table[1::2] << 4).tobytes() + steps.to_bytes(2, "little") + pieces.astype("<u2").tobytes()
    return head + _bits(symbols, code, int(pieces.sum()))


def decode(data: Bytes, count: int, alphabet: int) -> Bytes:
    """Read `count` symbols below `alphabet`; a ValueError if the bytes are anything else."""
    nibbles = (alphabet + 1) // 2
    if data.size < nibbles + 2:
        raise ValueError("a Huffman code is cut short")
    table = np.stack((data[:nibbles] & 15, data[:nibbles] >> 4), 1).reshape(-1)
    if table[alphabet:].any():
        raise ValueError("a Huffman code has padding bits set")
    look = _lookup(table[:alphabet])
    steps = int.from_bytes(data[nibbles : nibbles + 2].tobytes(), "little")
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"a Huffman code in pieces of {steps} symbols, where 1 to {MAX_STEPS} go")
    many = _pieces(count, steps)
    start = nibbles + 2 + 2 * many
    if data.size < start:
        raise ValueError("a Huffman code is cut short")
    ends = np.cumsum(data[nibbles + 2 : start].view("<u2"), dtype=np.int64)
    bits = data[start:]
    if bits.size != (int(ends[-1]) + 7) // 8:
        raise ValueError(f"a Huffman code of {ends[-1]} bits in {bits.size} bytes")
    if ends[-1] % 8 and bits[-1] & (255 >> (ends[-1] % 8)):
        raise ValueError("a Huffman code has padding bits set")
    return _lockstep(bits, look, ends, steps, count)


def _lockstep(bits: Bytes, look: NDArray[np.uint16], ends: NDArray[np.int64], steps: int, count: int) -> Bytes:
    """Decode one symbol of every piece, then the next one of every piece, ..."""
    padded = np.append(bits, np.zeros(3, np.uint8))
    windows = padded[:-2].astype(np.int32)  # the 24 bits from each byte on
    for i in (1, 2):
        windows <<= 8
        windows |= padded[i : len(windows) + i]
    at = np.append(0, ends[:-1])
    steps = min(steps, count)
    found = np.empty((steps, at.size), np.uint16)
    last = count - (at.size - 1) * steps  # symbols in the last piece
    byte, window, shift = np.empty_like(at), np.empty(at.size, np.int32), np.empty(at.size, np.int32)
    stopped = 0
    for step in range(steps):
        np.right_shift(at, 3, out=byte)
        np.take(windows, byte, out=window, mode="clip")
        np.bitwise_and(at, 7, out=shift, casting="unsafe")
        np.subtract(24 - MAX_BITS, shift, out=shift)
        np.right_shift(window, shift, out=window)
        np.bitwise_and(window, (1 << MAX_BITS) - 1, out=window)
        np.take(look, window, out=found[step], mode="clip")
        np.bitwise_and(found[step], 15, out=shift)
        np.add(at, shift, out=at)
        if step == last - 1:
            stopped = int(at[-1])
    at[-1] = stopped
    if not np.array_equal(at, ends):
        raise ValueError("a Huffman code does not end where it should")
    found >>= 4
    return found.astype(np.uint8).T.reshape(-1)[:count]


def _huffman(weights: NDArray[np.int64]) -> Bytes:
    """Huffman's own algorithm: join the two lightest trees until one is left; each joint is a bit of their codes."""
    heap: list[tuple[int, int, tuple[int, ...]]] = [
        (int(weight), i, (i,)) for i, weight in enumerate(weights) if weight
    ]
    heapq.heapify(heap)
    found = np.zeros(len(weights), np.uint8)
    while len(heap) > 1:
        light, i, some = heapq.heappop(heap)
        heavy, _, others = heapq.heappop(heap)
        both = some + others
        found[list(both)] += 1
        heapq.heappush(heap, (light + heavy, i, both))
    return found


def _order(code: Bytes) -> NDArray[np.intp]:
    """The symbols in use, in the order of canonical codes: by length of the code, then by symbol."""
    order = np.argsort(code, kind="stable")
    return order[code[order] > 0]


def _codes(code: Bytes) -> NDArray[np.int64]:
    """The canonical code of each symbol, as a number."""
    order = _order(code)
    room = 1 << (MAX_BITS - code[order].astype(np.int64))
    found = np.zeros(len(code), np.int64)
    found[order] = (np.cumsum(room) - room) >> (MAX_BITS - code[order].astype(np.int64))
    return found


def _lookup(code: Bytes) -> NDArray[np.uint16]:
    """A table by the next MAX_BITS bits: the symbol they begin with times 16, plus the length of its code."""
    order = _order(code)
    long = code[order].astype(np.int64)
    room = 1 << np.maximum(MAX_BITS - long, 0)
    if long.size < 2 or long.max() > MAX_BITS or room.sum() != 1 << MAX_BITS:
        raise ValueError("code lengths that make no Huffman code")
    return np.repeat((order << 4 | long).astype(np.uint16), room)


def _bits(symbols: Bytes, code: Bytes, total: int) -> bytes:
    """Write the codes of all symbols, `total` bits in all, the highest bit of each first."""
    codes, words, end = _codes(code), np.zeros(total // 32 + 3), 0
    for start in range(0, symbols.size, _BLOCK):
        some = symbols[start : start + _BLOCK]
        taken = code[some].astype(np.int64)
        ends = np.cumsum(taken)
        ends += end
        at = ends - taken
        first = end >> 5
        spread = codes[some] << (63 - (at & 31) - taken)  # over two words, of 32 bits and of 31
        at >>= 5
        at -= first
        many = int(at[-1]) + 2
        # As floats, exactly: no two codes have a bit in common, and no sum has more than 32.
        words[first : first + many] += np.bincount(at, spread >> 31, many)
        words[first : first + many] += np.bincount(at + 1, (spread & 0x7FFFFFFF) << 1, many)
        end = int(ends[-1])
    return words.astype(">u4").tobytes()[: (total + 7) // 8]


def _steps(count: int) -> int:
    return min(max(-(-count // _PIECES), _MIN_STEPS), MAX_STEPS)


def _pieces(count: int, steps: int) -> int:
    return -(-count // steps)
