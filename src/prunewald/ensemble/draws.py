"""Randomness that belongs to a replica: a hash of its own seed and a counter.

Torch's generators give noise that depends on how many replicas share a tensor. A hash of seed, purpose, step and
position does not: it is the same on every device, in every chunk, in any order. Integers wrap, so it is exact.
The same lines compute it on numpy's arrays of int32, which for one small model on a CPU take a third of the time.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prunewald.util.arguments import whole

Words = TypeVar("Words", Tensor, NDArray[np.int32])

SAMPLE, ORDER, NOISE, OTHER = 0x243F6A88, 0x05A308D3, 0x13198A2E, 0x03707344  # what a stream is for; digits of pi
_MULTIPLY = (0x7FEB352D, 0x846CA68B - (1 << 32))  # the multipliers of lowbias32
_OTHER = 0x3C6EF372  # tells the second key of a stream from the first


def seed_key(seeds: Sequence[int], purpose: int, device: torch.device | str = "cpu") -> Tensor:
    """Two words for each seed, (R, 2): what every stream of a replica with this purpose starts from."""
    for seed in seeds:
        whole("seed", seed, 0, (1 << 63) - 1)
    both = torch.tensor(list(seeds), dtype=torch.int64, device=device).view(torch.int32).view(-1, 1, 2)
    start = torch.tensor([purpose, purpose ^ _OTHER], dtype=torch.int32, device=device)
    return chain(start, both[..., 0], both[..., 1])


def chain(key: Words, *words: Any) -> Words:
    """Hash words into a key, one after the other."""
    for word in words:
        key = _mix(key ^ word, 0)
    return key


def bits(key: Words, size: int) -> Words:
    """Uniform 32-bit integers (signed), (..., size), from a key of two words, (..., 2)."""
    return _mix(counted(size, key) + key[..., :1], key[..., 1:])


def counted(size: int, like: Words) -> Words:
    """The numbers from 0 to before `size`, of the kind and on the device of other words."""
    if isinstance(like, np.ndarray):
        return np.arange(size, dtype=np.int32)
    return torch.arange(size, dtype=torch.int32, device=like.device)


def _mix(x: Words, key: Any) -> Words:
    """Chris Wellons' lowbias32, a hash of 32 bits, with a key mixed in between its two rounds."""
    # A right shift of a signed integer copies its sign, which is masked away.
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MULTIPLY[0]
    x = (x ^ ((x >> 15) & 0x1FFFF) ^ key) * _MULTIPLY[1]
    return x ^ ((x >> 16) & 0xFFFF)


def order(seeds: Sequence[int], size: int, epoch: int, device: torch.device | str = "cpu") -> Tensor:
    """The order in which each replica sees its data in an epoch: (R, size)."""
    once = list(dict.fromkeys(seeds))  # sorting is the dear part
    orders = bits(chain(seed_key(once, ORDER, device), epoch), size).argsort(dim=-1, stable=True)
    if len(once) == len(seeds):
        return orders
    at = {seed: r for r, seed in enumerate(once)}
    return orders[torch.tensor([at[seed] for seed in seeds], device=device)]


def other(seed: int, epoch: int) -> int:
    """A seed for torch's own generators in one epoch of a replica."""
    high, low = chain(seed_key([seed], OTHER), epoch)[0].tolist()
    return int((high << 32 ^ low) & ((1 << 63) - 1))


def bootstrap(seeds: Sequence[int], size: int, device: torch.device | str = "cpu") -> Tensor:
    """Rows of the data for each replica, (R, size): `size` of `size`, drawn with replacement."""
    drawn = bits(seed_key(seeds, SAMPLE, device), size).long() + (1 << 31)
    return (drawn * size) >> 32


def keep(key: Words, shape: torch.Size, p: float) -> Tensor:
    """Which elements dropout keeps: True with probability 1 - p, independently."""
    kept = bits(key, shape.numel()) >= round(p * (1 << 32)) - (1 << 31)
    return torch.as_tensor(kept).view(shape)
