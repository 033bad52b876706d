"""Files that are written whole or not at all, and the one reader of files that torch.save wrote."""

import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import torch

FilePath = str | os.PathLike[str]


@contextmanager
def replacing(path: FilePath) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` only when all went well.

    A file that is there keeps its mode, and its owner where that is allowed; meanwhile nobody else can read the draft.
    A new file has the mode that the umask gives. What is there and no regular file is refused with an OSError.
    """
    target = os.path.realpath(path)  # a link stays a link
    if not os.path.isdir(os.path.dirname(target)):
        raise FileNotFoundError(f"{os.fspath(path)!r}: there is no folder {os.path.dirname(target)!r} to write to")
    mode = 0o666 if _replaced(path, target) is None else 0o600
    draft = os.path.join(os.path.dirname(target), f".prunewald-{secrets.token_hex(8)}.tmp")
    file = open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if old := _replaced(path, target):
            with suppress(OSError, AttributeError):  # only root may give files away; Windows has no such owners
                os.chown(draft, old.st_uid, old.st_gid)
            os.chmod(draft, old.st_mode & 0o777)
        os.replace(draft, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def _replaced(path: FilePath, target: str) -> os.stat_result | None:
    """What is known of the file to be replaced; None if there is none, an OSError if it is no regular file."""
    try:
        found = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a device or the like"
    raise FileExistsError(f"{os.fspath(path)!r} is {kind}, no regular file to replace: give another name")


def read_torch(
    path: FilePath, what: str, remedy: str, error: type[ValueError] = ValueError, *, mapped: bool = False
) -> Any:
    """What torch.save wrote, on the CPU, without running any code in it.

    With `mapped`, tensors are read from the file when they are used, but for one in torch's older format.

    A file that is missing or cannot be opened is an OSError; any other that cannot be read is an `error`, which says
    that it is no `what`, and why, and then the `remedy`.
    """
    with open(path, "rb") as file:
        try:
            mapped = mapped and zipfile.is_zipfile(file)
            file.seek(0)
            source: Any = os.fspath(path) if mapped else file
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as reason:  # whatever a broken file makes of zip (an OSError, where it is cut off) or pickle
            said = (str(reason) or type(reason).__name__).splitlines()[0]
            raise error(f"{os.fspath(path)!r} is no {what} ({said}): {remedy}") from reason
