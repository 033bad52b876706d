"""Saved states of a Pruner, checked before anything goes on from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor


def check_saved(state: object) -> None:
    """Refuse what is not the saved state of a Pruner."""
    shape: dict[str, type] = {"masks": Mapping, "states": list, "steps": int}
    if not isinstance(state, Mapping) or not shape.keys() <= state.keys():
        held = f"a dict of {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"not the state of a Pruner: it is {held}, and should be a dict of {', '.join(map(repr, shape))}"
        )
    for key, kind in shape.items():
        if not isinstance(state[key], kind):
            raise ValueError(
                f"not the state of a Pruner: its {key!r} is {type(state[key]).__name__}, and should be {kind.__name__}"
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
    if not isinstance(saved, list) or [_keys(one) for one in saved] != [_keys(own) for own in states]:
        held = [_keys(s) for s in saved] if isinstance(saved, list) else type(saved).__name__
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
