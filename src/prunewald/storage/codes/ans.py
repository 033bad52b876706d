"""Asymmetric numeral systems, by constriction: as near to the entropy as integers go.

The model is in integers alone, so every machine decodes the same: frequencies out of 2^16, from a byte a symbol.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TOTAL = 1 << 16
_TOP = 31 << 15  # the largest weight a byte can say
_SLACK = 6  # bytes that the coder's last state takes, about

Bytes = NDArray[np.uint8]


def available() -> bool:
    """Tell whether constriction is installed."""
    try:
        import constriction  # noqa: F401
    except ImportError:
        return False
    return True


def require() -> None:
    """Raise an ImportError that says what to install, unless constriction is there."""
    _constriction()


def table(counts: NDArray[Any]) -> Bytes:
    """A byte for each symbol, a small float: 4 bits of mantissa, 4 of exponent."""
    weights = np.maximum(counts * (_TOP / max(int(counts.max()), 1)), 16)
    exponent = np.floor(np.log2(weights / 16)).astype(np.int64)
    mantissa = np.rint(weights / 2.0**exponent).astype(np.int64) - 16  # 16 carries over into the exponent
    return np.asarray(np.minimum(exponent * 16 + mantissa, 255), np.uint8)


def frequencies(table: Bytes) -> NDArray[np.int64]:
    """How often each symbol is expected, out of TOTAL; at least once."""
    weights = (16 + (table & 15).astype(np.int64)) << (table >> 4).astype(np.int64)
    found = 1 + weights * (TOTAL - table.size) // int(weights.sum())
    found[found.argmax()] += TOTAL - found.sum()
    return found


def size(counts: NDArray[Any], table: Bytes) -> int:
    """Bytes that `encode` takes for symbols that come `counts` times, within a few."""
    bits = float((counts * (16 - np.log2(frequencies(table)))).sum())
    return table.size + int(bits / 8) + _SLACK


def encode(symbols: Bytes, table: Bytes) -> bytes:
    """The table, and the coder's words."""
    coder = _constriction().stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), _model(table))
    words: NDArray[np.uint32] = coder.get_compressed()
    return table.tobytes() + words.astype("<u4").tobytes()


def decode(data: Bytes, count: int, alphabet: int) -> Bytes:
    """Undo `encode` for `count` symbols below `alphabet`; ValueError if that cannot be."""
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
