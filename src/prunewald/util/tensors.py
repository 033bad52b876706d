"""Small operations on single tensors that many modules share."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element

_PIECE = 1 << 19  # so many weights are masked at a time
_SMALL = 1 << 16  # what is smaller is masked in one piece
# So many weights stay in the cache of a CPU from one step to the next, and are fewer than torch hands to several
# threads: on a busy machine threads that wait for each other at every step take many times as long as one.
CACHED = (1 << 15) - 64
_LAUNCHED = 1 << 22  # so many keep another device busy for longer than it takes to start a step


class _Wide(threading.local):
    """A piece of a mask in each integer type, to be written over; each thread has its own."""

    def __init__(self) -> None:
        self.by_type: dict[torch.dtype, Tensor] = {}


_wide = _Wide()


def zero_(tensor: Tensor, alive: Tensor) -> None:
    """Set a tensor to zero where it is not alive."""
    # As a product of the bits: +0.0 even from -1 or NaN, and several times faster than masked_fill_.
    bits = tensor.detach().view(_INTEGERS[tensor.element_size()])
    if tensor.device.type != "cpu" or tensor.numel() < _SMALL or not (bits.is_contiguous() and alive.is_contiguous()):
        bits.mul_(alive)
        return
    # On a CPU torch would widen the mask into a new tensor each time, and the system give out its memory anew.
    wide = _wide.by_type.get(bits.dtype)
    if wide is None:
        wide = _wide.by_type[bits.dtype] = torch.empty(_PIECE, dtype=bits.dtype, device="cpu")
    for piece, mask in zip(bits.view(-1).split(_PIECE), alive.view(-1).split(_PIECE), strict=True):
        piece.mul_(wide[: len(mask)].copy_(mask))


def fingerprint(tensor: Tensor) -> int:
    """A sum over the bits of a tensor: where it differs, the tensor was written to, be it by the smallest step."""
    return int(tensor.detach().view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64))


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Flat pieces of a tensor, in order of position; views wherever it is contiguous."""
    return iter(tensor.detach().reshape(-1).split(CACHED if tensor.is_cpu else _LAUNCHED))


def in_pieces(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """What an elementwise function gives: of a large tensor piece by piece, so that its steps stay within the cache."""
    if not tensors[0].is_cpu or tensors[0].numel() <= CACHED:
        return function(*tensors)
    some = zip(*map(pieces, tensors), strict=True)
    first = function(*next(some))
    found = fresh(tensors[0], first.dtype)
    room = pieces(found)
    next(room).copy_(first)
    for place, piece in zip(room, some, strict=True):
        place.copy_(function(*piece))
    return found


def fresh(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for a tensor of this shape, which has entries, to be written to.

    On a CPU it is numpy's, which asks for huge pages: where a system has these only on request, a large tensor of
    torch's costs several times as long to get as to fill.
    """
    if not like.is_cpu:
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    return torch.from_numpy(np.empty(like.numel() * dtype.itemsize, np.uint8)).view(dtype).view(like.shape)


def count_true(mask: Tensor) -> int:
    """How many are True; at once where the mask is a view of one value."""
    if mask.numel() and not any(mask.stride()):
        return mask.numel() * int(mask[(0,) * mask.dim()])
    return int(np.count_nonzero(mask.numpy()) if mask.is_cpu else torch.count_nonzero(mask))


def places(mask: Tensor) -> Tensor:
    """Where a flat mask is True, in order; on a CPU numpy is several times faster."""
    return torch.from_numpy(mask.numpy().nonzero()[0]) if mask.is_cpu else mask.nonzero().view(-1)


def packed_bits(mask: Tensor) -> Tensor:
    """A mask at one bit an element, in the order of memory: bytes, of which each has its first element lowest."""
    flat: Tensor = torch.nn.functional.pad(mask.detach().reshape(-1), (0, -mask.numel() % 8)).unflatten(0, (-1, 8))
    places = torch.tensor([1 << at for at in range(8)], dtype=torch.uint8, device=mask.device)
    return (flat * places).sum(1, dtype=torch.uint8)


def unpacked_bits(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of this shape that `packed_bits` made these bytes of."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.unsqueeze(1) >> places & 1).bool().reshape(-1)[: math.prod(shape)].reshape(shape)


def capturing() -> bool:
    """Whether what is run now is only recorded, for a CUDA graph to run later."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def dense(grad: Tensor) -> Tensor:
    """A gradient with all its entries: those of embeddings may be sparse."""
    return grad.to_dense() if grad.is_sparse else grad


def accumulator(tensor: Tensor) -> torch.dtype:
    """The type to compute in: at least float32, since bf16 and fp16 cannot hold a sum of small differences."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
