"""Warnings that point at the user's own line, however deep in the library they arise."""

import sys
import warnings
from pathlib import Path

import torch

# Where the user's own lines are not: this package, and torch, which calls its hooks.
_PASSED = (str(Path(__file__).parent.parent), str(Path(torch.__file__).parent))


def warn(message: str) -> None:
    """Warn at the innermost line outside this package and torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
