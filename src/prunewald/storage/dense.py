"""Dense checkpoints packed, and packed ones made dense: safetensors files, and state dicts that torch.save wrote."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from prunewald.model.targets import is_weight
from prunewald.storage import container
from prunewald.storage.codes.streams import Codec
from prunewald.storage.inspection import Inspection, inspect
from prunewald.storage.options import FileOptions, Size, Values
from prunewald.storage.packed import load, save_state
from prunewald.storage.positions import Positions
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
) -> Inspection:
    """Pack a checkpoint with zeros in it: a .safetensors file, or a state dict of torch.save's. No code in it is run.

    The options are those of `save`; one word for `values` cuts the floating-point tensors of two or more dimensions
    that are no biases.
    """
    _check_apart(source, path)
    state = read_dense(source)
    weights = {name for name, tensor in state.items() if is_weight(name, tensor)}
    save_state(state, path, FileOptions(values, size, codec, positions), weights, {}, None)
    return inspect(path, max_bytes=sum(tensor.nbytes for tensor in state.values()))


def unpack(path: FilePath, target: FilePath, *, max_bytes: int | None = None) -> None:
    """Write a packed model as a plain safetensors file, dense, with every name of the state dict."""
    _check_apart(path, target)
    state = load(path, max_bytes=max_bytes)
    from safetensors.torch import save

    with replacing(target) as file:
        file.write(save({name: tensor.clone() for name, tensor in state.items()}, metadata={"format": "pt"}))


def _check_apart(source: FilePath, target: FilePath) -> None:
    if os.path.realpath(source) == os.path.realpath(target):
        raise ValueError(f"{os.fspath(target)} is what is read: give another name to write to")


def read_dense(source: FilePath) -> dict[str, Tensor]:
    """Read a state dict from a .safetensors file or one of torch.save's; a ValueError if there is none in it."""
    if Path(source).suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(source))
        except SafetensorError as error:
            raise ValueError(f"{source}: not a whole safetensors file ({error})") from error
    if _is_packed(source):
        raise ValueError(f"{source}: packed already; `prunewald unpack` makes it dense")
    found: Any = read_torch(source, "state dict that torch.save wrote", _REMEDY)
    for wrapper in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(f"{source}: not a state dict; {_REMEDY}")
    return dict(found)


def _is_packed(source: FilePath) -> bool:
    try:
        container.read(source)
    except ValueError:
        return False
    return True
