"""Warnings that point at the user's own line, however deep in the library they arise."""

import sys
import warnings
from pathlib import Path

_HERE = str(Path(__file__).parent.parent)


def warn(message: str) -> None:
    """Warn at the innermost line outside this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
