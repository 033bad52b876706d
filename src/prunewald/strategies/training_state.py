"""The whole state of a training, copied: to go back to, or to go on from in another process."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from prunewald.model.optimizers import own_state, set_own_state_
from prunewald.pruner import Pruner
from prunewald.pruning.report import Report
from prunewald.util.notices import warn
from prunewald.util.trees import copied

TrainingState: TypeAlias = dict[str, Any]  # tensors, numbers, text, and dicts and lists of them: torch.save can hold it


class Stateful(Protocol):
    """What goes back with a training: an LR scheduler, a GradScaler."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, as torch's own have it."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Go back to a state."""


def take(pruner: Pruner, also: Sequence[Stateful] = ()) -> TrainingState:
    """Copy all that a training needs to go on from here; data and the user's own variables are not part of it."""
    params = pruner.model.named_parameters()
    return {
        "model": copied(pruner.model.state_dict()),
        "grads": {name: copied(p.grad) for name, p in params if p.grad is not None},  # some criteria score by them
        "optimizers": [copied(o.state_dict()) for o in pruner.optimizers],
        "wrappers": [own_state(one) for one in pruner.wrappers],
        "pruner": copied(pruner.state_dict()),
        "copies": [copied(copy.state_dict()) for copy in pruner.copies],
        "report": None if pruner.report is None else asdict(pruner.report),
        "random": _random_numbers(),
        "also": [copied(one.state_dict()) for one in also],
    }


def restore_(pruner: Pruner, state: Mapping[str, Any], also: Sequence[Stateful] = ()) -> None:
    """Go back to a state that was taken; torch's global random numbers too.

    The copies are those that were followed then: the Pruner lets go of later ones, which stay as they are.
    """
    _drop_later_copies_(pruner, len(state["copies"]))
    pruner.model.load_state_dict(state["model"])
    for name, param in pruner.model.named_parameters():
        grad = state["grads"].get(name)
        param.grad = None if grad is None else copied(grad).to(param.device)
    for optimizer, own in zip(pruner.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(copied(own))
    for wrapper, states in zip(pruner.wrappers, state.get("wrappers", []), strict=False):
        set_own_state_(wrapper, states)
    pruner.load_state_dict(state["pruner"])
    for copy, own in zip(pruner.copies, state["copies"], strict=False):
        copy.load_state_dict(own)
    pruner.report = None if state["report"] is None else Report.from_dict(state["report"])
    for one, own in zip(also, state.get("also", []), strict=True):
        one.load_state_dict(copied(own))
    _set_random_numbers(state["random"])


def _drop_later_copies_(pruner: Pruner, count: int) -> None:
    for copy in list(pruner.copies)[count:]:
        del pruner.copies[copy]
    if len(pruner.copies) < count:
        warn(
            f"the state has {count} copies of the model, and the Pruner follows {len(pruner.copies)}: "
            "call follow() before, and each gets its own"
        )


def _random_numbers() -> dict[str, Tensor]:
    """The states of torch's global generators, by device."""
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    return {"cpu": torch.get_rng_state()} | {f"cuda:{at}": torch.cuda.get_rng_state(at) for at in devices}


def _set_random_numbers(states: Mapping[str, Tensor]) -> None:
    for device, numbers in states.items():
        if device == "cpu":
            torch.set_rng_state(numbers.cpu())
        elif int(device.removeprefix("cuda:")) < torch.cuda.device_count():
            torch.cuda.set_rng_state(numbers.cpu(), device)
