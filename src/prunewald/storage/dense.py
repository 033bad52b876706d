"""Dense checkpoints packed, and packed ones made dense: safetensors files, and state dicts that torch.save wrote."""

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from prunewald.model.targets import is_weight
from prunewald.storage import container
from prunewald.storage.codes.streams import Codec
from prunewald.storage.container import blaming, check_max_bytes, check_size
from prunewald.storage.inspection import Inspection, inspect
from prunewald.storage.options import FileOptions, Size, Values
from prunewald.storage.packed import load, save_state
from prunewald.storage.positions import Positions
from prunewald.storage.state_dict import check_names, tied
from prunewald.util.files import FilePath, read_torch, replacing

_WRAPPERS = ("state_dict", "model")  # keys under which training scripts keep the state dict
_REMEDY = "save model.state_dict() with torch.save, or as safetensors"


def pack(
    source: FilePath,
    path: FilePath,
    *,
    values: Values = None,
    size: Size = 32,
    codec: Codec = "auto",
    positions: Positions = "auto",
    max_bytes: int | None = None,
) -> Inspection:
    """Pack a checkpoint with zeros in it: a .safetensors file, or a state dict of torch.save's. No code in it is run.

    The options are those of `save`; one word for `values` cuts the floating-point tensors of two or more dimensions
    that are no biases. Tensors of up to `max_bytes` in all are read: 1 GiB, or 256 times the source if that is more.
    """
    _check_apart(source, path)
    state = read_dense(source, max_bytes=max_bytes)
    weights = {name for name, tensor in state.items() if is_weight(name, tensor)}
    save_state(state, path, FileOptions(values, size, codec, positions), weights, {}, None)
    return inspect(path, max_bytes=sum(tensor.nbytes for tensor in state.values()))


def unpack(path: FilePath, target: FilePath, *, max_bytes: int | None = None) -> None:
    """Write a packed model as a plain safetensors file, dense, with every name of the state dict.

    `max_bytes` is as for `load`, but a tied tensor counts for each of its names, since safetensors writes it so often.
    """
    _check_apart(path, target)
    state = load(path, max_bytes=max_bytes)
    with blaming(path):
        check_names(state)
        check_size(os.path.getsize(path), sum(tensor.nbytes for tensor in state.values()), max_bytes)
    from safetensors.torch import save

    with replacing(target) as file:
        file.write(save({name: tensor.clone() for name, tensor in state.items()}, metadata={"format": "pt"}))


def _check_apart(source: FilePath, target: FilePath) -> None:
    if os.path.realpath(source) == os.path.realpath(target):
        raise ValueError(f"{os.fspath(target)} is what is read: give another name to write to")


def read_dense(source: FilePath, *, max_bytes: int | None = None, mapped: bool = False) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors file or one of torch.save's; a ValueError if there is none in it.

    `max_bytes` is as for `pack`. With `mapped`, tensors are read from the file when they are used, where it can be.
    """
    check_max_bytes(max_bytes)
    if container.is_packed(source):
        raise ValueError(f"{source}: packed already; `prunewald unpack` makes it dense")
    size = os.path.getsize(source)
    with _naming(source):
        check_size(size, _unfolded(source, size), max_bytes)
    state = _from_safetensors(source) if _is_safetensors(source) else _from_torch(source, mapped)
    with _naming(source):  # an expanded tensor is small in the file, and whole where it is packed
        check_names(state)
        check_size(size, sum(state[names[0]].nbytes for names in tied(state)), max_bytes)
    return state


@contextmanager
def _naming(source: FilePath) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{os.fspath(source)}: {error}") from error


def _is_safetensors(source: FilePath) -> bool:
    return Path(source).suffix == ".safetensors"


def _unfolded(source: FilePath, size: int) -> int:
    """The bytes that a checkpoint takes once it is read; 0 where they are no more than the file's own."""
    if _is_safetensors(source):
        return container.dense_size(source)
    with open(source, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return 0  # torch's older format, or no checkpoint at all
        try:
            total = sum(part.file_size for part in zipfile.ZipFile(file).infolist())
        except Exception as error:  # whatever zipfile makes of a broken one
            raise ValueError(f"not a whole zip file ({error}); {_REMEDY}") from error
    return total if total > size else 0  # torch itself deflates nothing


def _from_safetensors(source: FilePath) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(source))


def _from_torch(source: FilePath, mapped: bool) -> dict[str, Tensor]:
    found: Any = read_torch(source, "state dict that torch.save wrote", _REMEDY, mapped=mapped)
    for wrapper in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(f"{source}: not a state dict; {_REMEDY}")
    return dict(found)
