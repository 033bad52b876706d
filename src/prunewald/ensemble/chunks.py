"""As many replicas at once as memory allows: how much there is, and work in chunks that fit into it."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")


def memory(device: torch.device) -> int:
    """How many bytes may be taken: most of what is free on a GPU, half of what is free on a CPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch holds of earlier work is free too
        return int(0.7 * torch.cuda.mem_get_info(device)[0])
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 1 << 30


def in_chunks(work: Callable[[int, int], T], size: int, chunk: int) -> list[T]:
    """Call work(first, last) for `size` replicas, `chunk` at once, or half as many if a GPU's memory is too small."""
    done: list[T] = []
    first = 0
    while first < size:
        try:
            done.append(work(first, min(first + chunk, size)))
            first += chunk
        except torch.cuda.OutOfMemoryError:
            if chunk == 1:
                raise
            chunk = (chunk + 1) // 2
            torch.cuda.empty_cache()
    return done
