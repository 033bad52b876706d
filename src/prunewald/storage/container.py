"""The container of a packed file: a safetensors file, written atomically, checked to the last byte when it is read."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from prunewald.storage.index import DTYPE_NAMES, DTYPES, RESERVED, unique
from prunewald.util.arguments import whole
from prunewald.util.files import FilePath, replacing

FORMAT = "prunewald"
VERSION = "1"
_FREE, _RATIO = 1 << 30, 256  # tensors may take so many bytes of memory, or so many times the file
_MAX_HEADER = 100_000_000  # safetensors reads no longer header


class PackedFileError(ValueError):
    """A packed file is damaged, lies about what it holds, or is none at all. Names the file and the reason."""


@dataclass(frozen=True)
class Contents:
    """What a file holds."""

    index: str
    tensors: dict[str, Tensor]  # by key
    header: dict[str, Any]  # what safetensors says of each tensor, by key
    size: int  # of the whole file, in bytes


def write(path: FilePath, index: str, tensors: Mapping[str, Tensor]) -> None:
    """Write index and tensors (contiguous, on the CPU): whole and on disk, or not at all.

    Not by safetensors' own writer: that orders the metadata at random, and one model should give one file.
    """
    meta = {"format": FORMAT, "version": VERSION, "index": index, "sha256": _digest(index, tensors)}
    order = sorted(tensors, key=lambda key: (-tensors[key].itemsize, key))  # so that every tensor is aligned
    header: dict[str, Any] = {RESERVED: meta}
    end = 0
    for key in order:
        start, end = end, end + tensors[key].nbytes
        dtype, shape = DTYPE_NAMES[tensors[key].dtype], list(tensors[key].shape)
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > _MAX_HEADER:
        raise ValueError(f"{len(tensors)} tensors need a header of {len(head)} bytes; at most {_MAX_HEADER} go")
    with replacing(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for key in order:
            file.write(_raw(tensors[key]))


def read(path: FilePath) -> Contents:
    """Read a file whose version and checksum are right; a ValueError with the reason if they are not."""
    with open(path, "rb") as file, _opened(path) as inside:
        size = os.fstat(file.fileno()).st_size
        header = _unique_header(file)
        meta = _check_meta(inside.metadata() or {})
        _check_dtypes(header)
        # Copies: what is checked below is what is returned, whatever happens to the file.
        tensors = {key: _copy(inside.get_tensor(key)) for key in inside.keys()}  # noqa: SIM118
    if _digest(meta["index"], tensors) != meta["sha256"]:
        raise ValueError("the checksum does not match: the file is damaged")
    return Contents(meta["index"], tensors, header, size)


def is_packed(path: FilePath) -> bool:
    """Whether a file says that prunewald wrote it; it may be damaged all the same."""
    with open(path, "rb"):  # a file that is missing is an error here
        try:
            with _opened(path) as inside:
                return (inside.metadata() or {}).get("format") == FORMAT
        except ValueError:
            return False


def dense_size(path: FilePath) -> int:
    """The bytes of the tensors in any safetensors file; a ValueError if it is none, or has dtypes that are unknown."""
    with open(path, "rb") as file, _opened(path):
        header = _unique_header(file)
    _check_dtypes(header)
    ends = [info["data_offsets"] for key, info in header.items() if key != RESERVED]
    return sum(end - start for start, end in ends)


def check_max_bytes(max_bytes: int | None) -> None:
    """Refuse a limit that is no number of bytes; None stands for the default of `check_size`."""
    if max_bytes is not None:
        whole("max_bytes", max_bytes)


def check_size(size: int, total: int, max_bytes: int | None) -> None:
    """Refuse a file of `size` bytes whose tensors would take `total` bytes of memory, if that is not allowed."""
    limit = max(_FREE, _RATIO * size) if max_bytes is None else max_bytes
    if total > limit:
        raise ValueError(f"its tensors would take {total:,} bytes, more than {limit:,}; max_bytes= allows more")


@contextmanager
def blaming(path: FilePath) -> Iterator[None]:
    """Turn any error inside into a PackedFileError of this file, but for those of disk, memory or a missing package."""
    try:
        yield
    except (OSError, MemoryError, ImportError):
        raise
    except Exception as error:
        raise PackedFileError(f"{os.fspath(path)}: {error}") from error


def _opened(path: FilePath) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError("reading a packed file needs safetensors: pip install safetensors") from error
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"not a whole safetensors file ({error})") from error


def _check_dtypes(header: dict[str, Any]) -> None:
    """Refuse what safetensors can describe and torch, or this format, cannot hold."""
    for key, info in header.items():
        if key != RESERVED and info["dtype"] not in DTYPES:
            raise ValueError(f"{key!r} is of dtype {info['dtype']}, which is not known: known are {', '.join(DTYPES)}")


def _unique_header(file: BinaryIO) -> dict[str, Any]:
    # safetensors, which has checked the header, lets the last of two equal names win.
    size = int.from_bytes(file.read(8), "little")
    return cast(dict[str, Any], json.loads(file.read(size), object_pairs_hook=unique))


def _check_meta(meta: dict[str, str]) -> dict[str, str]:
    if meta.get("format") != FORMAT:
        raise ValueError("a safetensors file, but not one that prunewald wrote")
    if meta.get("version") != VERSION:
        raise ValueError(
            f"format version {meta.get('version')!r}, and this prunewald reads {VERSION!r} alone: read it with the "
            "prunewald that wrote it"
        )
    if meta.keys() != {"format", "version", "index", "sha256"}:
        raise ValueError(f"the metadata has {sorted(meta)}, not format, version, index and sha256")
    return meta


def _digest(index: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()

    def add(chunk: bytes | memoryview) -> None:
        digest.update(len(chunk).to_bytes(8, "little"))
        digest.update(chunk)

    for text in (FORMAT, VERSION, index):
        add(text.encode())
    for key in sorted(tensors):
        shape = ",".join(map(str, tensors[key].shape))
        for text in (key, DTYPE_NAMES.get(tensors[key].dtype, ""), shape):
            add(text.encode())
        add(_raw(tensors[key]))
    return digest.hexdigest()


def _copy(tensor: Tensor) -> Tensor:
    # By bytes, since to copy a bool turns its byte 2 into 1 at times.
    return tensor.reshape(-1).view(torch.uint8).clone().view(tensor.dtype).reshape(tensor.shape)


def _raw(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
