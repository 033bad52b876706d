"""Asymmetric numeral systems (Duda 2013), by the package constriction: the bits come close to the entropy.

How often each symbol is expected is stored as a byte a symbol and computed in integers, so that every machine decodes
the same.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prunewald.storage.codes import Bytes

TOTAL = 1 << 16
_TOP = 31 << 15  # the largest weight a byte of the table can stand for
_SLACK = 6  # the coder's last state takes about so many bytes


def available() -> bool:
    """Whether constriction is installed."""
    try:
        import constriction  # noqa: F401
    except ImportError:
        return False
    return True


def require() -> None:
    """Raise an ImportError that says what to install, unless constriction is there."""
    _constriction()


def table(counts: NDArray[Any]) -> Bytes:
    """How often each symbol comes, to about 3 %: a byte each, as a float of 4 bits of mantissa and 4 of exponent."""
    weights = np.maximum(counts * (_TOP / max(int(counts.max()), 1)), 16)
    exponent = np.floor(np.log2(weights / 16)).astype(np.int64)
    mantissa = np.rint(weights / 2.0**exponent).astype(np.int64) - 16  # 16 carries over into the exponent
    return np.asarray(np.minimum(exponent * 16 + mantissa, 255), np.uint8)


def frequencies(table: Bytes) -> NDArray[np.int64]:
    """How many times out of TOTAL each symbol is expected, by the table: at least once."""
    weights = (16 + (table & 15).astype(np.int64)) << (table >> 4).astype(np.int64)
    found = 1 + weights * (TOTAL - table.size) // int(weights.sum())
    found[found.argmax()] += TOTAL - found.sum()
    return found


def size(counts: NDArray[Any], table: Bytes) -> int:
    """About how many bytes `encode` takes for symbols that come `counts` times."""
    bits = float((counts * (16 - np.log2(frequencies(table)))).sum())
    return table.size + int(bits / 8) + _SLACK


def encode(symbols: Bytes, table: Bytes) -> bytes:
    """Write the table, then the words of the coder."""
    coder = _constriction().stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), _model(table))
    words: NDArray[np.uint32] = coder.get_compressed()
    return table.tobytes() + words.astype("<u4").tobytes()


def decode(data: Bytes, count: int, alphabet: int) -> Bytes:
    """Read `count` symbols below `alphabet`; a ValueError if the bytes are anything else."""
    if data.size < alphabet or (data.size - alphabet) % 4 or alphabet < 2:
        raise ValueError(f"an ANS code of {data.size} bytes, with a table of {alphabet}")
    words = data[alphabet:].view("<u4").astype(np.uint32)
    coder = _constriction().stream.stack.AnsCoder(words)
    found = coder.decode(_model(data[:alphabet]), count)
    if not coder.is_empty():
        raise ValueError("an ANS code does not end where it should")
    return np.asarray(found).astype(np.uint8)


def _model(table: Bytes) -> Any:
    # constriction spreads 2^24 minus the number of symbols in proportion to what it is given, and adds one to each:
    # given just that many, all its steps are exact, and the frequencies are ours times 2^8.
    weights = (frequencies(table) << 8) - 1
    return _constriction().stream.model.Categorical(weights.astype(np.float64), perfect=False)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError as error:
        raise ImportError("ANS codes need constriction: pip install constriction") from error
    return constriction
