"""A training that is saved on its way, so that the same call goes on where a killed one was."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.ensemble.job import How, Job
from prunewald.ensemble.start import first_model
from prunewald.util.files import read_torch, replacing

_SECONDS = 60.0  # between two savings
_SHARE = 20  # and at least this many times what a saving takes, so that saving costs little of the whole
_SAMPLE = 1 << 16  # how many elements of a tensor tell it from others
_APART = ("make", "device", "keep_optimizer")  # the model itself is looked at; the others change no training
_WAYS: tuple[How, ...] = ("vmap", "loop")


class SavedError(ValueError):
    """A file in the folder of a training that is no saved training."""


@dataclass
class SavedFile:
    """The file that some of the replicas are saved in, together."""

    path: Path
    last: float = field(default_factory=time.monotonic)  # when it was saved
    took: float = 0.0  # how many seconds that took

    def load(self) -> dict[str, Any]:
        """What was saved last, on the CPU; empty where nothing was."""
        remedy = "delete it, and its replicas are trained from the beginning"
        try:
            saved = read_torch(self.path, "saved training", remedy, SavedError)
        except FileNotFoundError:  # also where another run has finished and deleted it
            return {}
        if not isinstance(saved, dict):
            raise SavedError(f"{str(self.path)!r} is no saved training ({type(saved).__name__}): {remedy}")
        return saved

    @property
    def due(self) -> bool:
        """Whether it is time to save again."""
        return time.monotonic() - self.last > max(_SECONDS, _SHARE * self.took)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a state in the place of the last one."""
        began = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), replacing(self.path) as file:  # another run may delete the folder at any time
            torch.save(dict(state), file)
        self.last = time.monotonic()
        self.took = self.last - began


@dataclass(frozen=True)
class TrainingFolder:
    """The folder that a job is saved in. Its files are named after the job, so that others there are left alone."""

    path: Path
    name: str

    @classmethod
    def of(cls, path: Path, job: Job) -> "TrainingFolder":
        """The folder with the name that this job gives to its files: a digest of all that the training depends on."""
        digest = hashlib.sha256()
        given = [getattr(job, each.name) for each in fields(job) if each.name not in _APART]
        for piece in _pieces([first_model(job), *given]):
            digest.update(piece + b";")
        return cls(path, digest.hexdigest()[:16])

    def begun(self) -> tuple[How, int] | None:
        """In which way the job was begun, and with how many replicas at once, so that it can go on likewise."""
        for way in _WAYS:
            for file in self.path.glob(f"{way}-00000-*-{self.name}.pt"):
                return way, int(file.name.split("-")[2])
        return None

    def file(self, way: str, first: int, size: int) -> SavedFile:
        """The file of `size` replicas from replica `first` on."""
        return SavedFile(self.path / f"{way}-{first:05}-{size}-{self.name}.pt")


def _pieces(value: Any) -> Iterator[bytes]:
    """What tells a value from others: a sample of a large tensor, the name of a function, else all of it."""
    if isinstance(value, Tensor):
        flat = value.detach().reshape(-1)
        step = len(flat) // _SAMPLE | 1  # odd, so that it does not fall on the same pixel of every image
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield flat[::step].contiguous().view(torch.uint8).cpu().numpy().tobytes()
    elif isinstance(value, nn.Module):
        yield repr(value).encode()
        yield from _pieces(value.state_dict())
    elif isinstance(value, Mapping):
        for key, part in sorted(value.items()):
            yield str(key).encode()
            yield from _pieces(part)
    elif isinstance(value, partial):
        for part in (value.func, *value.args, value.keywords):
            yield from _pieces(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _pieces(part)
    elif hasattr(value, "__qualname__"):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    else:
        text = repr(value)
        if " object at 0x" in text:
            raise ValueError(f"folder=: {text} cannot be told from others: give {type(value).__name__} a __repr__")
        yield text.encode()
