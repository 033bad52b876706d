"""A named piece of one parameter: all of it, or a slice."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from prunewald.model.layouts import Layout

Index: TypeAlias = Any  # whatever a tensor can be indexed with: int, slice, a tuple of them, a bool tensor


@dataclass(frozen=True)
class Slice:
    """Some weights of one parameter, scored and pruned as one tensor; mostly all of them."""

    name: str  # "fc1.weight", or "conv1.weight[2]"
    param: str
    index: Index = None  # None: the whole parameter
    layout: Layout | None = None  # where it is not (out, in, ...)

    def take(self, tensor: Tensor) -> Tensor:
        """These entries of a tensor shaped like the parameter."""
        return tensor if self.index is None else tensor[self.index]

    def take_each(self, *tensors: Tensor | None) -> list[Tensor | None]:
        """These entries of several tensors shaped like the parameter; None stays None."""
        return [t if t is None or self.index is None else t[self.index] for t in tensors]

    def put_(self, tensor: Tensor, values: Tensor) -> None:
        """Write these entries of a tensor shaped like the parameter."""
        tensor[... if self.index is None else self.index] = values


_MADE = re.compile(r"\.?parametrizations\.\w+$")
_RECURRENT = re.compile(r"(?:weight|bias)_[ih][hr]")


def layer_of(part: Slice) -> str:
    """The layer that a slice belongs to where the tensors of a module are one: "fc1", "lstm_l0", "experts[3]".

    The layers and directions of a recurrent module are apart, and so are single indices, such as experts.
    """
    owner, _, leaf = part.param.rpartition(".")
    recurrent = _RECURRENT.match(leaf)
    index = f"[{part.index}]" if isinstance(part.index, int) else ""
    return _MADE.sub("", owner) + (leaf[recurrent.end() :] if recurrent else "") + index


class Slices(tuple[Slice, ...]):
    """The slices that are pruned, and the names of what looked like weights and was left out by default."""

    left_out: Sequence[str] = ()
    adapted: Sequence[str] = ()  # the parameters among them that adapters add to
    masked: Sequence[str] = ()  # those to which adapters add nothing where they are pruned
