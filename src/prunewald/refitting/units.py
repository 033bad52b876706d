"""What is refitted at once: a matrix that a layer multiplies with, a parameter or a part of one, and its bias."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from prunewald.model.layouts import Layout

_PLAIN = Layout()


@dataclass(frozen=True)
class Span:
    """A part of a parameter along its first dimension: from one index to another, or a single one; else all of it."""

    param: str
    start: int = 0
    stop: int | None = None
    single: bool = False

    @property
    def name(self) -> str:
        """The parameter, with the part as an index."""
        if self.stop is None:
            return self.param
        return f"{self.param}[{self.start}]" if self.single else f"{self.param}[{self.start}:{self.stop}]"

    def take(self, tensor: Tensor) -> Tensor:
        """A view of this part of a tensor shaped like the parameter."""
        return tensor[self.start] if self.single else tensor[self.start : self.stop]


@dataclass(frozen=True)
class Unit:
    """A weight matrix with one row an output, where it is in a model, and the bias that is added to what it gives.

    `layout` says how the matrix lies there; `groups` of its rows meet inputs of their own.
    """

    span: Span
    layout: Layout = _PLAIN
    groups: int = 1
    bias: Span | None = None

    @property
    def name(self) -> str:
        """What it is called in a report."""
        return self.span.name

    def matrix(self, tensor: Tensor) -> Tensor:
        """The rows of a tensor shaped like the parameter."""
        part = self.span.take(tensor)
        return (self.layout.swap(part) if self.layout.transposed else part).flatten(1)

    def put_(self, tensor: Tensor, matrix: Tensor) -> None:
        """Write rows into a tensor shaped like the parameter."""
        part = self.span.take(tensor)
        shape = self.layout.swapped(tuple(part.shape)) if self.layout.transposed else part.shape
        rows = matrix.reshape(shape)
        part.copy_(self.layout.swap(rows) if self.layout.transposed else rows)


class Places:
    """Which part of which parameter a tensor is, by the memory it looks at."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._by_memory: dict[int, list[tuple[str, Tensor]]] = {}
        self.add(tensors)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Look for these too."""
        for name, tensor in tensors.items():
            self._by_memory.setdefault(_memory(tensor), []).append((name, tensor))

    def drop(self, tensors: Mapping[str, Tensor]) -> None:
        """Look for these no more."""
        for tensor in tensors.values():
            self._by_memory.pop(_memory(tensor), None)

    def find(self, tensor: Tensor) -> Span | None:
        """The part that a tensor is, in the orientation of the parameter; None where it is none, or another view."""
        return next((span for name, whole in self._near(tensor) if (span := _part(name, whole, tensor))), None)

    def turned(self, tensor: Tensor) -> tuple[Span, bool] | None:
        """The part that a matrix is, and whether it lies the other way in the parameter."""
        if span := self.find(tensor):
            return span, False
        span = self.find(tensor.transpose(-2, -1)) if tensor.dim() > 1 else None
        return (span, True) if span else None

    def within(self, tensors: Iterable[Tensor]) -> list[str]:
        """The parameters that these tensors are, or are views of."""
        return [name for tensor in tensors for name, _ in self._near(tensor)]

    def _near(self, tensor: Tensor) -> list[tuple[str, Tensor]]:
        return self._by_memory.get(_memory(tensor), [])


def _memory(tensor: Tensor) -> int:
    return 0 if tensor.is_meta or tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


def _part(name: str, whole: Tensor, tensor: Tensor) -> Span | None:
    """The part of a parameter that a tensor in the same memory is."""
    offset = tensor.storage_offset() - whole.storage_offset()
    if tensor.shape == whole.shape and tensor.stride() == whole.stride() and not offset:
        return Span(name)
    if whole.dim() < 1 or not whole.stride(0) or offset % whole.stride(0) or offset < 0:
        return None
    start = offset // whole.stride(0)
    if tensor.shape[1:] == whole.shape[1:] and tensor.stride() == whole.stride() and start + len(tensor) <= len(whole):
        return Span(name, start, start + len(tensor))
    if tensor.shape == whole.shape[1:] and tensor.stride() == whole.stride()[1:] and start < len(whole):
        return Span(name, start, start + 1, single=True)
    return None
