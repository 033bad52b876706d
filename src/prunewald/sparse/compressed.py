"""A weight without its zeros: rows of positions and values, with int32 positions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_MOST = 2**31 - 1  # positions are int32


@dataclass(frozen=True, eq=False)
class Compressed:
    """A matrix (outputs, inputs) as its values that are not zero, row by row, and the bias of its layer.

    `starts` has where each row begins in `places` and `values`, and where the last one ends.
    """

    starts: Tensor
    places: Tensor
    values: Tensor
    outputs: int
    inputs: int
    bias: nn.Parameter | None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "Compressed":
        """Of a dense matrix; nothing is shared with it."""
        weight = weight.detach()
        rows, places = weight.nonzero(as_tuple=True)
        counts = torch.bincount(rows, minlength=weight.shape[0])
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
        own = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        outputs, inputs = weight.shape
        return cls(starts, places.int(), weight[rows, places].clone(), outputs, inputs, own)

    @property
    def zeros(self) -> float:
        """The share of the weights that is zero."""
        return 1 - self.values.numel() / max(1, self.outputs * self.inputs)

    def dense(self) -> Tensor:
        """The matrix with its zeros."""
        found = self.values.new_zeros(self.outputs, self.inputs)
        found[self.rows(), self.places.long()] = self.values
        return found

    def rows(self) -> Tensor:
        """The row of each value."""
        counts = self.starts.diff().long()
        return torch.repeat_interleave(torch.arange(self.outputs), counts)


def countable(weight: Tensor) -> bool:
    """Whether positions of a matrix can be counted in int32."""
    return weight.numel() <= _MOST
