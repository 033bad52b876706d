"""Saved states of a Pruner: how they are laid out in a checkpoint, and the check before anything goes on from them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from prunewald.util.tensors import packed_bits, unpacked_bits
from prunewald.util.trees import mapped

_PACKED = {"bits", "shape"}  # what a mask is saved as


def packed(tree: Any) -> Any:
    """A state as it goes into a checkpoint: every mask in it takes one bit a weight, all else is as it was."""
    return mapped(tree, lambda tensor: tensor if tensor.dtype != torch.bool else _saved(tensor))


def unpacked(tree: Any) -> Any:
    """What was packed. Masks that are bool tensors, as older checkpoints have them, are taken as they are."""
    if isinstance(tree, Mapping):
        mask = tree.keys() == _PACKED and isinstance(tree["shape"], list)
        return _mask(**tree) if mask else {key: unpacked(value) for key, value in tree.items()}
    return type(tree)(map(unpacked, tree)) if isinstance(tree, list | tuple) else tree


def _saved(mask: Tensor) -> dict[str, Any]:
    return {"bits": packed_bits(mask), "shape": list(mask.shape)}


def _mask(bits: Tensor, shape: list[int]) -> Tensor:
    needed = -(-math.prod(shape) // 8)
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8 or bits.shape != (needed,):
        held = f"{tuple(bits.shape)} of {bits.dtype}" if isinstance(bits, Tensor) else type(bits).__name__
        raise ValueError(f"a saved mask of shape {tuple(shape)} should be {needed} bytes, and is {held}")
    return unpacked_bits(bits, shape)


def check_saved(state: object) -> None:
    """Refuse what is not the saved state of a Pruner."""
    shape: dict[str, Any] = {
        "masks": (Mapping, "a dict"),
        "states": (list | tuple, "a tuple"),
        "steps": (int, "an int"),
    }
    if not isinstance(state, Mapping) or not shape.keys() <= state.keys():
        held = f"a dict of {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"not the state of a Pruner: it is {held}, and should be a dict of {', '.join(map(repr, shape))}"
        )
    for key, (kind, word) in shape.items():
        if not isinstance(state[key], kind):
            raise ValueError(
                f"not the state of a Pruner: its {key!r} is {type(state[key]).__name__}, and should be {word}"
            )


def check_states(
    what: str,
    saved: Any,
    states: Sequence[Mapping[str, Any]],
    owners: Sequence[Sequence[str]],
    params: Mapping[str, Tensor],
) -> None:
    """Refuse saved states of another estimator or statistic, or of other optimizers.

    `what` they are of is said in errors; `states` are the Pruner's own, and `owners` for each of its optimizers the
    names of the parameters it steps.
    """
    if not isinstance(saved, list | tuple) or [_keys(one) for one in saved] != [_keys(own) for own in states]:
        held = [_keys(s) for s in saved] if isinstance(saved, list | tuple) else type(saved).__name__
        raise ValueError(
            f"the saved {what} states hold {held}, this Pruner's "
            f"{[_keys(s) for s in states]}: make it with the same uncertainty, criterion and optimizers"
        )
    for one, own in zip(saved, owners, strict=False):
        tables = [table for table in _tables(one) if table]
        for table in tables:
            if not table.keys() <= set(own) or table.keys() != tables[0].keys():
                raise ValueError(
                    f"the saved {what} state is of {sorted(table)}, but its optimizer here steps {sorted(own)}: "
                    "give the Pruner the same optimizers in the same order"
                )
            for name, tensor in table.items():
                _check_tensor(what, name, tensor, params)


def _check_tensor(what: str, name: str, tensor: Tensor, params: Mapping[str, Tensor]) -> None:
    if tensor.shape != params[name].shape:
        raise ValueError(
            f"the saved {what} state of {name!r} has shape {tuple(tensor.shape)}, not {tuple(params[name].shape)}"
        )


def _keys(state: object) -> object:
    return sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__


def _tables(state: object) -> Iterator[Mapping[str, Tensor]]:
    """Every dict of tensors in a state, however deep it lies: these are by parameter name."""
    if isinstance(state, Mapping):
        if all(isinstance(value, Tensor) for value in state.values()):
            yield state
        else:
            state = list(state.values())
    if isinstance(state, list):
        for value in state:
            yield from _tables(value)
