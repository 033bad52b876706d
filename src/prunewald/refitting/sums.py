"""The Gram matrices of a layer, summed up over batches: in float64, of products in at least float32."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prunewald.distributed import summed
from prunewald.refitting.seeing import Product
from prunewald.refitting.solving import Gram
from prunewald.util.tensors import accumulator


class Sums:
    """What a layer's inputs and targets give, as one Gram for each group of its outputs; the last input is a 1."""

    def __init__(self) -> None:
        self.inputs: Tensor | None = None  # (groups, d + 1, d + 1)
        self.cross: Tensor | None = None  # (groups, rows, d + 1)
        self.outputs: Tensor | None = None  # (groups, rows)
        self.count = 0

    def add(self, call: Product, target: Tensor | None, keep: Tensor | None) -> None:
        """Take in one call; `target` is what it should have given, None where only the inputs are wanted.

        `keep` are the positions that count, where the call has as many.
        """
        given = None if target is None else call.given(target)
        for at, rows in call.met():
            y = None if given is None else given[:, at]
            if keep is not None and call.module is None and rows.shape[1] == keep.numel():
                flat = keep.reshape(-1).to(rows.device)
                rows, y = rows[:, flat], None if y is None else y[:, flat]
            x = rows.to(accumulator(rows))
            y = None if y is None else y.to(x)
            self._put(x, y if y is None or call.shift is None else y - call.shift.to(y).view(len(y), 1, -1))

    def _put(self, x: Tensor, y: Tensor | None) -> None:
        sums, n = x.sum(1, dtype=torch.float64), x.shape[1]
        gram = torch.empty(len(x), x.shape[2] + 1, x.shape[2] + 1, dtype=torch.float64, device=x.device)
        gram[:, :-1, :-1] = x.mT @ x
        gram[:, :-1, -1] = gram[:, -1, :-1] = sums
        gram[:, -1, -1] = n
        self.inputs = gram if self.inputs is None else self.inputs.add_(gram)
        self.count += n
        if y is not None:
            cross = torch.empty(len(y), y.shape[2], x.shape[2] + 1, dtype=torch.float64, device=x.device)
            cross[:, :, :-1] = y.mT @ x
            cross[:, :, -1] = y.sum(1, dtype=torch.float64)
            outputs = y.square().sum(1, dtype=torch.float64)
            self.cross = cross if self.cross is None else self.cross.add_(cross)
            self.outputs = outputs if self.outputs is None else self.outputs.add_(outputs)

    def reduced(self, weight: Tensor, *, aimed: bool) -> None:
        """Add up over the processes that train together; this one may have seen nothing of it.

        `weight` has the shape of the layer's, (groups, rows, d + 1); `aimed` says whether there were targets.
        """
        groups, rows, width = weight.shape
        shapes = {"inputs": (groups, width, width), "cross": (groups, rows, width), "outputs": (groups, rows)}
        for name, shape in shapes.items() if aimed else [("inputs", shapes["inputs"])]:
            mine = vars(self)[name]
            zeros = torch.zeros(shape, dtype=torch.float64, device=weight.device) if mine is None else mine
            vars(self)[name] = summed(zeros)
        assert self.inputs is not None
        self.count = round(float(self.inputs[0, -1, -1]))

    @property
    def finite(self) -> bool:
        """Whether nothing in it is NaN or infinite."""
        tensors = (self.inputs, self.cross, self.outputs)
        return all(one is None or bool(one.isfinite().all()) for one in tensors)

    def aim(self, weight: Tensor) -> None:
        """Take for targets what a weight, (groups, rows, d + 1) with its bias, gives for the same inputs."""
        assert self.inputs is not None
        weight = weight.double()
        self.cross = weight @ self.inputs
        self.outputs = (self.cross * weight).sum(2)

    def grams(self, bias: bool) -> Sequence[Gram]:
        """The Gram of each group, with or without the 1 among its inputs."""
        assert self.inputs is not None
        assert self.cross is not None
        assert self.outputs is not None
        end = None if bias else -1
        return [
            Gram(x[:end, :end], cross[:, :end], y, float(self.count), bias)
            for x, cross, y in zip(self.inputs, self.cross, self.outputs, strict=True)
        ]
