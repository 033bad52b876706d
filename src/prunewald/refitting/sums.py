"""The Gram matrices of layers, summed up over batches: in float64, of products in at least float32."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from prunewald.distributed import summed
from prunewald.refitting.seeing import Product
from prunewald.refitting.solving import Gram
from prunewald.util.tensors import accumulator

_ROWS = 512  # so many rows of a product are added at a time


class Met:
    """Inputs that layers met, by group of outputs: Σ x x', and Σ z x' with those of the dense model, z.

    The last entry of each is a 1.
    """

    def __init__(self) -> None:
        self.inputs: Tensor | None = None  # (groups, d + 1, d + 1)
        self.between: Tensor | None = None  # the same
        self._summed = False

    def add(self, x: Tensor, z: Tensor | None = None) -> None:
        """Take in rows of each group, (groups, n, d)."""
        self.inputs = _plus_products(self.inputs, x)
        if z is not None:
            self.between = _plus_products(self.between, x, z.to(x))

    def reduced(self, groups: int, width: int, device: torch.device, *, between: bool) -> None:
        """Add up over the processes that train together, once; this one may have seen nothing of it."""
        if not self._summed:
            if self.inputs is not None:
                _mirror_(self.inputs)
            zeros = torch.zeros(groups, width, width, dtype=torch.float64, device=device)
            self.inputs = summed(zeros if self.inputs is None else self.inputs)
            if between:
                self.between = summed(zeros if self.between is None else self.between)
            self._summed = True

    @property
    def count(self) -> int:
        """How many rows there were."""
        return 0 if self.inputs is None else round(float(self.inputs[0, -1, -1]))


class Sums:
    """What one layer met, and should have given: as one Gram for each group of its outputs."""

    def __init__(self, met: Met) -> None:
        self.met = met
        self.cross: Tensor | None = None  # (groups, rows, d + 1)
        self.outputs: Tensor | None = None  # (groups, rows)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take in inputs, (groups, n, d), and targets, (groups, n, rows)."""
        self.cross = _plus_products(self.cross, x, y, last=False)
        self.add_squares(squares(y))

    def add_squares(self, found: Tensor) -> None:
        """Take in the squares of targets, summed up."""
        self.outputs = _plus(self.outputs, found)

    def reduced(self, weight: Tensor, *, aimed: bool, crosswise: bool) -> None:
        """Add up over the processes, and find the targets' part where it follows from the dense `weight`.

        That has the shape (groups, rows, d + 1). `crosswise` it is asked for what it gives for the inputs of the dense
        model, and unless `aimed` for the same inputs.
        """
        groups, rows, width = weight.shape
        self.met.reduced(groups, width, weight.device, between=crosswise)
        assert self.met.inputs is not None
        dense = weight.double()
        if not aimed:
            self.cross = dense @ self.met.inputs
            self.outputs = (self.cross * dense).sum(2)
            return
        zeros = torch.zeros(groups, rows, width, dtype=torch.float64, device=weight.device)
        self.outputs = summed(zeros[..., 0].contiguous() if self.outputs is None else self.outputs)
        if crosswise:
            assert self.met.between is not None
            self.cross = dense @ self.met.between
        else:
            self.cross = summed(zeros if self.cross is None else self.cross)

    @property
    def finite(self) -> bool:
        """Whether nothing in it is NaN or infinite."""
        tensors = (self.met.inputs, self.cross, self.outputs)
        return all(one is None or bool(one.isfinite().all()) for one in tensors)

    def grams(self, bias: bool) -> Sequence[Gram]:
        """The Gram of each group, with or without the 1 among its inputs."""
        assert self.met.inputs is not None
        assert self.cross is not None
        assert self.outputs is not None
        end = None if bias else -1
        return [
            Gram(x[:end, :end], cross[:, :end], y, float(self.met.count), bias)
            for x, cross, y in zip(self.met.inputs, self.cross, self.outputs, strict=True)
        ]


def rows_of(call: Product, keep: Tensor | None, out: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """What a call met, and what it gave or should have given, as rows in at least float32, in pieces.

    `keep` are the positions that count, where the call has as many.
    """
    given = None if out is None else call.given(out)
    for at, rows in call.met():
        y = None if given is None else given[:, at]
        if keep is not None and call.module is None and rows.shape[1] == keep.numel():
            flat = keep.reshape(-1).to(rows.device)
            rows, y = rows[:, flat], None if y is None else y[:, flat]
        x = rows.to(accumulator(rows))
        if y is not None:
            y = y.to(x) if call.shift is None else y.to(x) - call.shift.to(x).view(len(y), 1, -1)
        yield x, y


def squares(y: Tensor) -> Tensor:
    """Σ y² over the rows of each group, (groups, outputs)."""
    return y.square().sum(1, dtype=torch.float64)


def _plus_products(total: Tensor | None, b: Tensor, a: Tensor | None = None, *, last: bool = True) -> Tensor:
    """With Σ a b' over the rows of each group added, b with a 1 as its last entry, and a too unless it is not `last`.

    Without an `a`, for Σ b b', only as far as the lower triangle follows from it. A few rows at a time: of many inputs
    a product of its own is as large as half of the total.
    """
    left = b if a is None else a
    height, width = left.shape[2], b.shape[2]
    if total is None:
        total = torch.zeros(len(b), height + last, width + 1, dtype=torch.float64, device=b.device)
    for start in range(0, height, _ROWS):
        rows, begin = slice(start, min(start + _ROWS, height)), start if a is None else 0
        total[:, rows, begin:-1] += left[:, :, rows].mT @ b[:, :, begin:]
    total[:, :height, -1] += left.sum(1, dtype=torch.float64)
    if last:
        total[:, -1, :-1] += b.sum(1, dtype=torch.float64)
        total[:, -1, -1] += b.shape[1]
    return total


def _mirror_(total: Tensor) -> None:
    """Make symmetric, in place, what is whole in and above the blocks of its diagonal."""
    for start in range(_ROWS, total.shape[1] - 1, _ROWS):
        rows = slice(start, start + _ROWS)
        total[:, rows, :start] = total[:, :start, rows].mT


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)
