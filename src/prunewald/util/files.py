"""Files that are written whole, or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

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
