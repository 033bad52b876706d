"""A framework of others: imported when it is used, in a version that is known to work."""

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_KNOWN = {  # by package: the extra that installs it, the oldest version, and the first that is not known to work
    "lightning": ("lightning", "2.6", "3"),
    "pytorch_lightning": ("lightning", "2.6", "3"),  # the same by its older name
    "transformers": ("transformers", "5.0", "6"),
    "accelerate": ("accelerate", "1.10", "2"),
    "peft": ("peft", "0.17", "1"),
    "torch_pruning": ("torch-pruning", "1.6", "2"),
}


def framework(package: str) -> Any:
    """The module of a framework; an ImportError says what to install where it is missing, or of another version."""
    extra, oldest, beyond = _KNOWN[package]
    wanted = f"{package.replace('_', '-')}>={oldest},<{beyond}"
    try:
        found = version(package.replace("_", "-"))
    except PackageNotFoundError:
        raise ImportError(
            f"prunewald.integrations.{package} needs {wanted}: pip install 'prunewald[{extra}]'"
        ) from None
    if not _numbers(oldest) <= _numbers(found) < _numbers(beyond):
        raise ImportError(f"{package} {found} is installed, prunewald works with {wanted}: pip install '{wanted}'")
    return import_module(package)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
