"""Save a pruned model to a packed file, and load it."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, cast, overload

from torch import Tensor, nn

from prunewald.files import FilePath
from prunewald.storage import container, index
from prunewald.storage.container import blaming
from prunewald.storage.state import pack, same_bits, tied, unfit, unpack

M = TypeVar("M", bound=nn.Module)
_SHOWN = 5


class Pruned(Protocol):
    """What `save` needs of a pruner."""

    @property
    def model(self) -> nn.Module:
        """The model, its pruned weights at zero."""

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """A bool tensor by parameter name; False is pruned."""


def save(pruner: Pruned | nn.Module, path: FilePath) -> None:
    """Save a pruner's model, or a plain one, as a packed file: small, lossless, no pickle.

    Of a pruned tensor only the surviving values and a mask of bits are stored. Of a plain model, and of
    tensors without a mask, the same is done wherever enough values are zero to make it smaller.
    """
    if isinstance(pruner, nn.Module):
        model, masks = _plain(pruner), {}
    elif isinstance(getattr(pruner, "model", None), nn.Module):
        model, masks = pruner.model, dict(pruner.masks)
    else:
        raise TypeError(f"save takes a pruner or a torch.nn.Module, not a {type(pruner).__name__}")
    entries, parts = pack(model.state_dict(), masks)
    container.write(path, index.dump(entries), parts)


@overload
def load(path: FilePath, *, into: M) -> M: ...
@overload
def load(path: FilePath, *, into: None = None) -> dict[str, Tensor]: ...
def load(path: FilePath, *, into: M | None = None) -> M | dict[str, Tensor]:
    """Load a packed file, bit for bit: into a model, which is returned, or as a state dict on the CPU.

    The model must have the names, shapes and dtypes of the file. On any error it is untouched: a
    PackedFileError if the file is at fault, a ValueError that names the differences if it is another model's.
    """
    with blaming(path):
        text, parts = container.read(path)
        state = unpack(index.parse(text), parts)
    if into is None:
        return state
    # load_state_dict fills what fits before it complains, so nothing may be left for it to complain about.
    model = _plain(into)
    target = model.state_dict()
    if differences := _differences(state, target):
        shown = "; ".join(differences[:_SHOWN]) + ("; ..." if len(differences) > _SHOWN else "")
        raise ValueError(f"{path} does not fit this {type(into).__name__}: {shown}")
    target.update(state)  # the model's own state dict, since it carries the versions of its modules
    model.load_state_dict(target)
    return into


def _plain(model: nn.Module) -> nn.Module:
    """The model inside what torch.compile returns, whose names are those of the file."""
    return cast(nn.Module, getattr(model, "_orig_mod", model))


def _differences(state: Mapping[str, Tensor], target: Mapping[str, Any]) -> list[str]:
    found = [f"{name!r} is in the model only" for name in target if name not in state]
    found += [f"{name!r} is in the file only" for name in state if name not in target]
    for name in state:
        if name in target and (ours := _kind(state[name])) != (theirs := _kind(target[name])):
            found.append(f"{name!r} is {ours} in the file, {theirs} in the model")
    return found or _clashes(state, target)


def _kind(value: Any) -> str:
    if reason := unfit(value):
        return reason
    # load_state_dict cannot write to an expanded tensor.
    expanded = any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True))
    return f"{value.dtype} {tuple(value.shape)}" + (", expanded" if expanded else "")


def _clashes(state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> list[str]:
    return [
        f"{first!r} and {name!r} are tied in the model and differ in the file"
        for first, *others in tied(target)
        for name in others
        if not same_bits(state[first], state[name])
    ]
