"""The state of a training: kept in memory to go back to, or in a folder to go on from."""

import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.model.optimizers import as_list
from prunewald.pruner import Pruner
from prunewald.pruning.report import Report, TensorReport
from prunewald.util.files import FilePath, replacing
from prunewald.util.trees import copied

State = dict[str, Any]


class Checkpoint:
    """A model and its optimizer as they are now, to rewind to after a pruning (Renda et al., 2020).

    Take it early in training, and give `iterative` one of its methods: `rewind=checkpoint.weights_` sets weights,
    moments and learning rate back, `rewind=checkpoint.lr_` the learning rate alone. `copies` of the model, such as an
    AveragedModel that the Pruner follows, go back with its weights.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | list[Optimizer], *copies: nn.Module) -> None:
        self._models = [getattr(one, "_orig_mod", one) for one in (model, *copies)]
        self._optimizers = as_list(optimizer)
        self._weights = [copied(one.state_dict()) for one in self._models]
        self._states = [copied(o.state_dict()) for o in self._optimizers]

    def weights_(self) -> None:
        """Set the weights and the optimizer back."""
        for model, weights in zip(self._models, self._weights, strict=True):
            model.load_state_dict(weights)
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            optimizer.load_state_dict(copied(state))

    def lr_(self) -> None:
        """Set the learning rate back, and whatever else a scheduler may have changed; the weights stay."""
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
                for key in group.keys() - saved.keys():
                    del group[key]  # a scheduler's initial_lr, from which the next one would start
                for key in saved.keys() - {"params"}:
                    set_(group, key, saved[key])


def check_rewind(rewind: object, pruner: Pruner) -> None:
    """A Checkpoint whose weights go back must take along every copy that the Pruner follows."""
    checkpoint = getattr(rewind, "__self__", None)
    if not isinstance(checkpoint, Checkpoint) or rewind == checkpoint.lr_:
        return
    for copy in pruner.copies:
        if not any(copy is own for own in checkpoint._models):
            raise ValueError(
                f"the Pruner follows a copy of the model, {type(copy).__name__}, which checkpoint.weights_ would "
                "leave as it is: take Checkpoint(model, optimizer, copy) while the copy is at that point too"
            )


def set_(group: dict[str, Any], key: str, value: Any) -> None:
    """Change a setting of a parameter group; a tensor is what a captured or compiled step reads, and stays that one."""
    if isinstance(group.get(key), Tensor):
        group[key].copy_(torch.as_tensor(value))
    else:
        group[key] = copied(value)


def take(pruner: Pruner) -> State:
    """All that a run needs to go on from here, apart from what it had in memory."""
    params = pruner.model.named_parameters()
    return {
        "model": copied(pruner.model.state_dict()),
        "grads": {name: copied(p.grad) for name, p in params if p.grad is not None},  # some criteria score by them
        "optimizers": [copied(o.state_dict()) for o in pruner.optimizers],
        "pruner": copied(pruner.state_dict()),
        "copies": [copied(copy.state_dict()) for copy in pruner.copies],
        "report": None if pruner.report is None else asdict(pruner.report),
        "random": _random(),
    }


def restore_(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Go back to a state that was taken; torch's global random numbers too.

    The copies are those that were followed then: the Pruner lets go of later ones, which stay as they are.
    """
    for copy in list(pruner.copies)[len(state["copies"]) :]:
        del pruner.copies[copy]
    if len(pruner.copies) < len(state["copies"]):
        warnings.warn(
            f"the state has {len(state['copies'])} copies of the model, and the Pruner follows {len(pruner.copies)}: "
            "call follow() before, and each gets its own",
            stacklevel=2,
        )
    pruner.model.load_state_dict(state["model"])
    for name, param in pruner.model.named_parameters():
        grad = state["grads"].get(name)
        param.grad = None if grad is None else copied(grad).to(param.device)
    for optimizer, own in zip(pruner.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(copied(own))
    pruner.load_state_dict(state["pruner"])
    for copy, own in zip(pruner.copies, state["copies"], strict=False):
        copy.load_state_dict(own)
    pruner.report = None if state["report"] is None else as_report(state["report"])
    for device, numbers in state["random"].items():
        if device == "cpu":
            torch.set_rng_state(numbers.cpu())
        elif int(device.removeprefix("cuda:")) < torch.cuda.device_count():
            torch.cuda.set_rng_state(numbers.cpu(), device)


def _random() -> dict[str, Tensor]:
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    return {"cpu": torch.get_rng_state()} | {f"cuda:{at}": torch.cuda.get_rng_state(at) for at in devices}


def as_report(saved: Mapping[str, Any]) -> Report:
    """A report, from the plain data that `asdict` made of it."""
    return Report(**{**saved, "rows": [TensorReport(**row) for row in saved["rows"]]})


class Folder:
    """States of one run by name, each written whole; a run with another plan is refused. Without a path, in memory."""

    def __init__(self, path: FilePath | None, plan: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        self._memory: dict[str, State] = {}
        if self._path is not None:
            self._path.mkdir(parents=True, exist_ok=True)
            self._check(self._path, plan)

    def _check(self, path: Path, plan: Mapping[str, Any]) -> None:
        file = path / "plan.json"
        text = re.sub(" at 0x[0-9a-f]+", "", json.dumps(plan, indent=1))  # where functions were in another process
        if not file.exists():
            with replacing(file) as out:
                out.write(text.encode())
            return
        try:
            held = dict(json.loads(file.read_text()))
        except (ValueError, TypeError):
            raise ValueError(f"{os.fspath(file)!r} is no plan of a run: give another folder") from None
        if differences := _differences(held, json.loads(text)):
            raise ValueError(
                f"{os.fspath(path)!r} holds another run: {differences}. "
                "Give another folder, or go on with the same plan"
            )

    def save(self, name: str, state: State) -> None:
        """Keep a state."""
        if self._path is None:
            self._memory[name] = state
        else:
            with replacing(self._path / f"{name}.pt") as file:
                torch.save(state, file)

    def drop(self, name: str) -> None:
        """Forget a state, if there is one."""
        self._memory.pop(name, None)
        if self._path is not None:
            (self._path / f"{name}.pt").unlink(missing_ok=True)

    def load(self, name: str) -> State | None:
        """A state that was kept; None if there is none."""
        if self._path is None:
            return self._memory.get(name)
        file = self._path / f"{name}.pt"
        return _read(file) if file.exists() else None


def _differences(held: State, mine: State) -> str:
    """What two plans do not share; of the weights, each by its name."""
    held, mine = (
        plan | {"weights": 0} | {repr(n): s for n, s in plan.get("weights", {}).items()} for plan in (held, mine)
    )
    keys = [key for key in held | mine if held.get(key, "absent") != mine.get(key, "absent")]
    shown = [f"{key} is {held.get(key, 'absent')} there and {mine.get(key, 'absent')} here" for key in keys]
    return "; ".join(shown[:5]) + (f"; and {len(shown) - 5} more" if len(shown) > 5 else "")


def _read(file: Path) -> State:
    try:
        state = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever a broken file makes of zip, pickle or tensors
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{_no_state(file)} ({reason})") from error
    if not isinstance(state, dict) or not {"model", "optimizers", "pruner", "random"} <= state.keys():
        raise ValueError(_no_state(file))
    return state


def _no_state(file: Path) -> str:
    return f"{os.fspath(file)!r} holds no state that this run could have written: delete it, and its part is done anew"
