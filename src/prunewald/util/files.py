"""Files that are written whole or not at all, and the one reader of files that torch.save wrote."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import torch

FilePath = str | os.PathLike[str]


@contextmanager
def replacing(path: FilePath) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` only when all went well."""
    target = os.path.realpath(path)  # a link stays a link
    if not os.path.isdir(os.path.dirname(target)):
        raise FileNotFoundError(f"{os.fspath(path)!r}: there is no folder {os.path.dirname(target)!r} to write to")
    draft = os.path.join(os.path.dirname(target), f".prunewald-{secrets.token_hex(8)}.tmp")
    file = open(draft, "xb")  # noqa: SIM115
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            os.chmod(draft, os.stat(target).st_mode & 0o777)
        os.replace(draft, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def read_torch(path: FilePath, what: str, remedy: str, error: type[ValueError] = ValueError) -> Any:
    """What torch.save wrote, on the CPU, without running any code in it.

    A file that is missing or cannot be opened is an OSError; any other that cannot be read is an `error`, which says
    that it is no `what`, and why, and then the `remedy`.
    """
    with open(path, "rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as reason:  # whatever a broken file makes of zip (an OSError, where it is cut off) or pickle
            said = (str(reason) or type(reason).__name__).splitlines()[0]
            raise error(f"{os.fspath(path)!r} is no {what} ({said}): {remedy}") from reason
