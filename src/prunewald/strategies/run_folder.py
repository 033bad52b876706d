"""The folder of a run: its plan, and its states by name, from which a run that was stopped goes on."""

import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from prunewald.strategies.training_state import TrainingState
from prunewald.util.files import FilePath, read_torch, replacing

_REMEDY = "delete it, and what it held is done anew"
_SHOWN = 5


class RunFolder:
    """States of one run by name, each written whole; a run with another plan is refused.

    Without a path they are in a temporary folder, which goes when this object does: a search keeps many of them, each
    of several times the size of the model, and memory is for one.
    """

    def __init__(self, path: FilePath | None, plan: Mapping[str, Any]) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="prunewald-") if path is None else path)
        if path is None:
            weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
        self._path.mkdir(parents=True, exist_ok=True)
        _check_plan(self._path, plan)

    def save(self, name: str, state: TrainingState) -> None:
        """Keep a state."""
        with replacing(self._path / f"{name}.pt") as file:
            torch.save(state, file)

    def drop(self, name: str) -> None:
        """Forget a state, if there is one."""
        (self._path / f"{name}.pt").unlink(missing_ok=True)

    def load(self, name: str) -> TrainingState | None:
        """A state that was kept; None if there is none."""
        file = self._path / f"{name}.pt"
        return _read(file) if file.exists() else None


def _check_plan(path: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan of a new run, or compare it with the one that is there."""
    file = path / "plan.json"
    text = re.sub(" at 0x[0-9a-f]+", "", json.dumps(plan, indent=1))  # a function's address changes with the process
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
            f"{os.fspath(path)!r} holds another run: {differences}. Give another folder, or go on with the same plan"
        )


def _differences(held: dict[str, Any], mine: dict[str, Any]) -> str:
    """What two plans do not share; of the weights, each by its name."""
    held, mine = (
        plan | {"weights": 0} | {repr(n): s for n, s in plan.get("weights", {}).items()} for plan in (held, mine)
    )
    keys = [key for key in held | mine if held.get(key, "absent") != mine.get(key, "absent")]
    shown = [f"{key} is {held.get(key, 'absent')} there and {mine.get(key, 'absent')} here" for key in keys]
    return "; ".join(shown[:_SHOWN]) + (f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def _read(file: Path) -> TrainingState:
    state = read_torch(file, "state of this run", _REMEDY)
    if not isinstance(state, dict) or not {"model", "optimizers", "pruner", "random"} <= state.keys():
        raise ValueError(f"{os.fspath(file)!r} is no state of this run: {_REMEDY}")
    return state
