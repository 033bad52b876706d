"""Trained networks on disk, one file a network, so that a run that was stopped need not train them again."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from prunewald.ensemble import Result
from prunewald.ensemble.result import joined
from prunewald.lab.records import ResultsError
from prunewald.uncertainty import Estimate
from prunewald.util.files import read_torch, replacing

T = TypeVar("T")
_NEEDED = {"params", "estimates", "masks"}
_REMEDY = "delete it to train it again"


class Cache:
    """Networks by name and seed in a folder, each with the masks it was trained with, if any."""

    def __init__(self, folder: Path, make: Any) -> None:
        self._folder, self._make = folder, make

    def has(self, name: str, seed: int) -> bool:
        """Whether the network of this name and seed was kept."""
        return self._path(name, seed).exists()

    def save(self, name: str, result: Result, masks: Mapping[str, Tensor] | None = None) -> None:
        """Keep each network of a result, unless there is one: another run may use it already."""
        for r, seed in enumerate(result.seeds):
            path = self._path(name, seed)
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            own = {n: mask[r].clone() for n, mask in (masks or {}).items()}
            with replacing(path) as file:
                torch.save(_tables(result.rows([r])) | {"masks": own}, file)

    def load(self, name: str, seeds: Sequence[int]) -> Result:
        """The networks of these seeds as one result, in order."""
        return joined([self._result(name, seed) for seed in seeds])

    def masks(self, name: str, seed: int) -> dict[str, Tensor]:
        """The masks that one network was trained with."""
        return dict(self._read(name, seed)["masks"])

    def drop(self, name: str, seed: int) -> None:
        """Forget a network that nothing needs any more."""
        self._path(name, seed).unlink(missing_ok=True)

    @contextmanager
    def running(self, what: str, items: Sequence[object]) -> Iterator[Path]:
        """A folder for a piece of work on its way; forgotten when it is done."""
        names = [repr(item) for item in items]
        folder = self._folder / "running" / f"{what}-{hashlib.sha256(' '.join(names).encode()).hexdigest()[:16]}"
        with suppress(FileNotFoundError):  # another run at the same piece may be done with it at any time
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / "items.json") as file:
                file.write(json.dumps(names).encode())
        yield folder
        shutil.rmtree(folder, ignore_errors=True)

    def stopped(self, what: str, items: Sequence[T]) -> list[list[T]]:
        """The pieces of these items that were killed on their way."""
        known, found = {repr(item): item for item in items}, []
        for file in sorted(self._folder.glob(f"running/{what}-*/items.json")):
            with suppress(FileNotFoundError):  # another run may have finished it
                names = json.loads(file.read_bytes())
                if known.keys() >= set(names):
                    found.append([known[name] for name in names])
        return found

    def _result(self, name: str, seed: int) -> Result:
        tables = self._read(name, seed)
        estimates = tuple({n: Estimate(*e) for n, e in table.items()} for table in tables["estimates"])
        own = {key: table for key, table in tables.items() if key not in ("estimates", "masks")}
        return Result(make=self._make, seeds=(seed,), estimates=estimates, second_moment={}, **own)

    def _read(self, name: str, seed: int) -> dict[str, Any]:
        path = self._path(name, seed)
        tables = read_torch(path, "trained network", _REMEDY, ResultsError)
        missing = _NEEDED - (tables.keys() if isinstance(tables, dict) else set())
        if missing:
            raise ResultsError(f"{str(path)!r} is no trained network (it has no {min(missing)}): {_REMEDY}")
        return dict(tables)

    def _path(self, name: str, seed: int) -> Path:
        return self._folder / name.replace(":", "_") / f"{seed:05}.pt"


def _tables(one: Result) -> dict[str, Any]:
    return {
        "params": one.params,
        "buffers": one.buffers,
        "losses": one.losses,
        "estimates": [{n: tuple(e) for n, e in table.items()} for table in one.estimates],
        "how": one.how,
        "optimizer_state": one.optimizer_state,
    }
