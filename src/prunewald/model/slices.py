"""A named piece of one parameter: all of it, or a slice."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

Index: TypeAlias = Any  # whatever a tensor can be indexed with: int, slice, a tuple of them, a bool tensor


@dataclass(frozen=True)
class Slice:
    """A named piece of one parameter, scored and pruned as one tensor: all of it, or a slice."""

    name: str  # "fc1.weight", or "conv1.weight[2]"
    param: str
    index: Index = None

    def take(self, tensor: Tensor) -> Tensor:
        """This part of a tensor shaped like the parameter."""
        return tensor if self.index is None else tensor[self.index]

    def put_(self, tensor: Tensor, values: Tensor) -> None:
        """Write this part of a tensor shaped like the parameter."""
        tensor[... if self.index is None else self.index] = values
