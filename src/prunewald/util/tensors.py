"""Small operations on single tensors that many modules share."""

from collections.abc import Iterator

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


def zero_(tensor: Tensor, alive: Tensor) -> None:
    """Set a tensor to zero where it is not alive."""
    # As a product of the bits: +0.0 even from -1 or NaN, and several times faster than masked_fill_.
    tensor.detach().view(_INTEGERS[tensor.element_size()]).mul_(alive)


def fingerprint(tensor: Tensor) -> int:
    """A sum over the bits of a tensor: where it differs, the tensor was written to, be it by the smallest step."""
    return int(tensor.detach().view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64))


def pieces(tensor: Tensor, size: int = 1 << 20) -> Iterator[Tensor]:
    """Flat pieces of at most `size` elements, in order of position; views wherever the tensor is contiguous."""
    return iter(tensor.detach().reshape(-1).split(size))


def dense(grad: Tensor) -> Tensor:
    """A gradient with all its entries: those of embeddings may be sparse."""
    return grad.to_dense() if grad.is_sparse else grad


def accumulator(tensor: Tensor) -> torch.dtype:
    """The type to compute in: at least float32, since bf16 and fp16 cannot hold a sum of small differences."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
