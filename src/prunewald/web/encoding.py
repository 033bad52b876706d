"""Numbers and text as they stand in a page: arrays in base64, counts in few bytes, JSON that no markup can leave."""

import base64
import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TYPES = {torch.float32: "<f4", torch.float64: "<f8", torch.uint8: "u1", torch.int8: "i1"}
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def array(values: Tensor) -> str:
    """The bytes of a tensor, little-endian, in base64; of a bool tensor eight entries a byte, the first the lowest."""
    flat = values.detach().reshape(-1).cpu()
    if flat.dtype == torch.bool:
        return _base64(np.packbits(flat.numpy(), bitorder="little").tobytes())
    return _base64(flat.numpy().astype(_TYPES[flat.dtype]).tobytes())


def counts(values: Tensor) -> str:
    """Whole numbers in base64: seven bits a byte, the lowest first, and after each 0 how many more follow it."""
    found = bytearray()
    numbers = values.reshape(-1).tolist()
    at = 0
    while at < len(numbers):
        _varint(found, numbers[at])
        at += 1
        if not numbers[at - 1]:
            first = at
            while at < len(numbers) and not numbers[at]:
                at += 1
            _varint(found, at - first)
    return _base64(bytes(found))


def embedded(data: Any) -> str:
    """Data as JSON that can stand in a script element: no character in it ends the element or begins another."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for char, escape in _ESCAPES.items():
        text = text.replace(char, escape)
    return text


def finite(value: float | None) -> float | None:
    """A number as JSON can hold it: None for what is no number, or is infinite."""
    return None if value is None or not math.isfinite(value) else float(value)


def short(value: float | None) -> float | None:
    """The same to nine digits, which tell every float32 apart."""
    known = finite(value)
    return None if known is None else float(f"{known:.9g}")


def _varint(into: bytearray, number: int) -> None:
    while number > 127:
        into.append(number & 127 | 128)
        number >>= 7
    into.append(number)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
