"""Bool masks as bits: element i, row-major, is bit i % 8 (least significant first) of byte i // 8."""

import numpy as np
import torch
from torch import Tensor


def pack(mask: Tensor) -> Tensor:
    """Pack a bool mask of n elements into ceil(n / 8) bytes; the last byte's unused bits are zero."""
    flat = mask.cpu().contiguous().view(-1).numpy()
    return torch.from_numpy(np.packbits(flat, bitorder="little"))


def unpack(packed: Tensor, count: int) -> Tensor:
    """Unpack the flat bool mask of `count` elements that `pack` packed; ValueError if it cannot be one."""
    if packed.dtype != torch.uint8 or packed.shape != (-(-count // 8),):
        given = f"{packed.dtype} {tuple(packed.shape)}"
        raise ValueError(f"a mask of {count} elements takes {-(-count // 8)} bytes, not {given}")
    bits = np.unpackbits(packed.numpy(), bitorder="little")
    if bits[count:].any():
        raise ValueError(f"a mask of {count} elements has padding bits set")
    return torch.from_numpy(bits[:count].view(np.bool_))
