"""Memory that is free, but that the C library keeps for itself."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Give the pages of freed memory back to the system, where the C library can be asked for it, as glibc can.

    It keeps what is freed between things that live on: after passes of a model of which some tensors are kept, as much
    again as these are.
    """
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found
