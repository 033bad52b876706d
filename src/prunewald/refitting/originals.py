"""The dense weights that a refit aims at: from a model, a state_dict or a file, checked against the pruned model."""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from prunewald.model.modules import averaged
from prunewald.util.files import FilePath, read_torch
from prunewald.util.text import some

Dense: TypeAlias = nn.Module | Mapping[str, Tensor] | FilePath

_MISSING = (
    "dense=None: refit aims at what the dense model computes: give dense=, the model as it was before pruning, its "
    "state_dict, or a file of it; or refit as you prune, prune(..., refit=data)"
)
_UNFIT = "dense={} does not fit the {} that was pruned: {}; give the same model as it was before pruning"
_PRUNED = (
    "dense={} has no weight where {} is pruned: it is as pruned as the model; give the model as it was before pruning"
)
_SAME = "dense={}: that is the pruned model itself; give a copy.deepcopy(model) or a state_dict from before pruning"

_NONE: Mapping[str, Tensor] = {}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def read_originals(dense: Dense | None, model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The dense tensors by the names of the pruned model; those that are not saved with a model are its own."""
    if dense is None:
        raise ValueError(_MISSING)
    state, said = _state(dense)
    found: dict[str, Tensor] = {}
    wrong: list[str] = []
    saved = set(model.state_dict())
    for name, tensor in named_tensors(model).items():
        other = next((state[one] for one in _aliases(model, name) if one in state), None)
        if other is None and name in saved:
            wrong.append(f"it has no {name!r}")
        elif other is not None and other.shape != tensor.shape:
            wrong.append(f"its {name!r} has shape {tuple(other.shape)}, not {tuple(tensor.shape)}")
        elif other is not None:
            if other.data_ptr() == tensor.data_ptr() and name in masks:
                raise ValueError(_SAME.format(said))
            found[name] = other.detach()
        else:
            found[name] = tensor.detach()
    if wrong:
        raise ValueError(_UNFIT.format(said, type(model).__name__, some(wrong, 3)))
    _check_denser(found, masks, said)
    return found


def _aliases(model: nn.Module, name: str) -> list[str]:
    """All names of a tensor."""
    this = named_tensors(model)[name]
    params = model.named_parameters(remove_duplicate=False)
    return [name, *(other for other, tensor in params if tensor is this and other != name)]


def _check_denser(dense: Mapping[str, Tensor], masks: Mapping[str, Tensor], said: str) -> None:
    pruned = {name: ~mask for name, mask in masks.items() if not bool(mask.all())}
    if pruned and not any(bool(dense[name].to(gone.device)[gone].any()) for name, gone in pruned.items()):
        raise ValueError(_PRUNED.format(said, some(map(repr, pruned), 3)))


def _state(dense: Any) -> tuple[Mapping[str, Tensor], str]:
    """The state dict, and what was given in words."""
    if isinstance(dense, nn.Module):
        return averaged(dense).state_dict(), f"{type(dense).__name__}(...)"
    if isinstance(dense, Mapping):
        if not all(isinstance(one, Tensor) for one in dense.values()):
            raise TypeError(f"dense={repr(dense)[:200]}: give the state_dict of a model, whose values are tensors")
        return dense, f"a {type(dense).__name__} of {len(dense)} tensors"
    if isinstance(dense, str | os.PathLike):
        from prunewald.storage import container, load
        from prunewald.storage.dense import read_dense

        return load(dense) if container.is_packed(dense) else read_dense(dense, mapped=True), repr(os.fspath(dense))
    raise TypeError(f"dense={repr(dense)[:200]}: give a model, its state_dict or a file of it")


class Originals:
    """The dense tensors by name; a part of a model reads its own. With a folder they are on disk, and only there.

    `shared` are those that are kept as they are, since the pruned model has them too.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], folder: FilePath | None = None, shared: Mapping[str, Tensor] = _NONE
    ) -> None:
        self._tensors = shared if folder else {**tensors, **shared}
        self._files: dict[str, Path] = {}
        if folder is not None:
            self._folder = TemporaryDirectory(dir=folder, prefix="prunewald-dense-")
            for at, (name, tensor) in enumerate(tensors.items()):
                self._files[name] = Path(self._folder.name, f"{at}.pt")
                torch.save(tensor.detach().clone(), self._files[name])  # of a view all that it looks at would be saved

    @property
    def on_disk(self) -> bool:
        """Whether they are read anew each time."""
        return bool(self._files)

    def read(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the same names as these tensors, on their devices and of their types."""
        return {name: self._one(name).to(own.device, own.dtype) for name, own in like.items()}

    def _one(self, name: str) -> Tensor:
        if name not in self._files:
            return self._tensors[name]
        found: Tensor = read_torch(self._files[name], "tensor that refit wrote", "leave its folder alone meanwhile")
        return found

    def close(self) -> None:
        """Remove what is on disk."""
        if self._files:
            self._folder.cleanup()


def copied(model: nn.Module, masks: Mapping[str, Tensor], folder: FilePath | None) -> Originals:
    """The model as it is: copies of what a refit may change, or files of it, and the other tensors as they are."""
    held = {id(buffer) for buffer in model.buffers()}
    changing: dict[str, Tensor] = {}
    shared: dict[str, Tensor] = {}
    for name, tensor in named_tensors(model).items():
        may = name in masks or tensor.dim() < 2 or id(tensor) in held
        (changing if may else shared)[name] = tensor.detach()
    if folder is None:
        changing = {name: tensor.clone() for name, tensor in changing.items()}
    return Originals(changing, folder, shared)
