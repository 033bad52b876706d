"""The k-th smallest of many values, without sorting them.

A sample tells two values between which it should lie. One pass, piece by piece, counts what is below these and picks
out the few in between. Where so many are equal that this does not help, it is found by a radix search over the bits of
the floats, which only ever counts.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prunewald.util.tensors import count_true, places

TOGETHER = 1 << 17  # so many values are looked at together
_EVERY = 61  # of more, one in so many is sampled; no usual length of a row is a multiple of it
_ERRORS = 5.0  # so many standard errors of the sample lie between either end of a window and its middle
_MOST = 0.125  # where more than this share of all values lies in a window, it does not help
_DIGIT = 16
_INTS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Window(NamedTuple):
    """Two values between which the k-th smallest of many should lie, and how many values are too many between them."""

    low: float
    high: float
    limit: int

    @classmethod
    def about(cls, k: int, some: Tensor, total: int) -> "Window":
        """Where the k-th smallest of so many values lies, as far as a sample of them tells."""
        share = k / total
        place, error = share * len(some), 1 + _ERRORS * math.sqrt(len(some) * share * (1 - share))
        low, high = int(place - error), int(place + error)
        inside = [end for end in (low, high) if 0 <= end < len(some)]
        ordered = np.partition(some.numpy(), inside) if some.is_cpu else some.sort().values
        return cls(
            float(ordered[low]) if low >= 0 else -math.inf,
            float(ordered[high]) if high < len(some) else math.inf,
            int(_MOST * total),
        )

    def below(self, piece: Tensor, room: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Which values of a flat piece lie below the window, in the memory given, and the places of those within."""
        under = torch.lt(piece, self.low, out=room)
        return under, places((piece <= self.high).logical_xor_(under))


def kth_smallest(values: Callable[[], Iterable[Tensor]], k: int) -> tuple[Tensor, int, int]:
    """The k-th smallest of all values (k from 1), how many of its equals are among these, and how many in all.

    `values` is called anew for each pass, and gives flat tensors.
    """
    some, total = sample(values())
    return _kth(some, k) if total == len(some) else _found(values, some, total, k)


def lower_median(values: Callable[[], Iterable[Tensor]]) -> float | None:
    """The median, of an even number of values the lower of the two in the middle; None of fewer than two values."""
    some, total = sample(values())
    if total < 2:
        return None
    k = (total + 1) // 2
    return float(some.kthvalue(k).values if total == len(some) else _found(values, some, total, k)[0])


def _found(values: Callable[[], Iterable[Tensor]], some: Tensor, total: int, k: int) -> tuple[Tensor, int, int]:
    """The k-th smallest of so many values, from what a sample of them tells."""
    window, near = Window.about(k, some, total), []
    rest, found = k, 0
    for piece in values():
        under, at = window.below(piece)
        rest, found = rest - count_true(under), found + at.numel()
        near.append(piece[at].to(some.device))
        if found > window.limit:
            return _radix(values, k)
    return _kth(torch.cat(near), rest) if 0 < rest <= found else _radix(values, k)


def sample(values: Iterable[Tensor]) -> tuple[Tensor, int]:
    """All values in one tensor if they are few, else evenly spaced ones; and how many there are."""
    found: list[Tensor] = []
    total = 0
    for piece in values:
        size = piece.numel()  # several times faster than its len
        few = total + size <= TOGETHER
        if not few and found and total <= TOGETHER:
            found = [torch.cat([one.to(found[0].device) for one in found])[::_EVERY]]
        found.append(piece if few else piece[-total % _EVERY :: _EVERY].clone())
        total += size
    return torch.cat([piece.to(found[0].device) for piece in found]), total


def _kth(values: Tensor, k: int) -> tuple[Tensor, int, int]:
    """The same of a few values."""
    value = values.kthvalue(k).values
    return value, k - int(torch.count_nonzero(values < value)), int(torch.count_nonzero(values == value))


def _radix(values: Callable[[], Iterable[Tensor]], k: int) -> tuple[Tensor, int, int]:
    """The k-th smallest by counting: its digits from the top, with one pass over the values for each."""
    example = next(iter(values()))
    prefix: int | None = None
    for shift in range(8 * example.element_size() - _DIGIT, -1, -_DIGIT):
        counts = torch.zeros(1 << _DIGIT, dtype=torch.int64, device=example.device)
        for piece in values():
            counts += _histogram(_bits(piece), shift, prefix).to(counts.device)
        digits = _ascending(prefix)
        upto = counts.cpu()[digits].cumsum(0)
        place = int(torch.searchsorted(upto, k))
        k -= int(upto[place - 1]) if place else 0
        digit = int(digits[place])
        # The top digit carries the sign.
        prefix = digit - ((digit >> (_DIGIT - 1)) << _DIGIT) if prefix is None else (prefix << _DIGIT) | digit
    value = torch.tensor(prefix, dtype=_INTS[example.dtype], device="cpu").view(example.dtype)
    return value, k, int(counts[digit])


def _bits(values: Tensor) -> Tensor:
    # Adding zero makes -0.0 and 0.0 one value.
    return (values + 0.0).view(_INTS[values.dtype])


def _histogram(bits: Tensor, shift: int, prefix: int | None) -> Tensor:
    if prefix is not None:
        bits = bits[(bits >> (shift + _DIGIT)) == prefix]
    return torch.bincount((bits >> shift) & ((1 << _DIGIT) - 1), minlength=1 << _DIGIT)


def _ascending(prefix: int | None) -> Tensor:
    """The next digit's values in the order of the floats: the bits of negative floats count downwards."""
    digits = torch.arange(1 << _DIGIT, device="cpu")
    if prefix is None:
        half = 1 << (_DIGIT - 1)
        return torch.cat([digits[half:].flip(0), digits[:half]])
    return digits.flip(0) if prefix < 0 else digits
