"""A training that is saved on its way, so that one that was killed goes on where it was."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from prunewald.ensemble.job import Job
from prunewald.files import replacing

How: TypeAlias = Literal["vmap", "loop"]
HOWS: tuple[How, ...] = ("vmap", "loop")
_SECONDS = 60.0  # between two savings
_SHARE = 20  # of the time that a saving takes, so that it takes little of the whole
_SAMPLE = 1 << 16  # elements of a tensor that tell it from others


@dataclass
class Saves:
    """The file of one training. It is of the job that wrote it, and of no other."""

    path: Path
    identity: str
    last: float
    took: float = 0.0

    @classmethod
    def of(cls, folder: Path, job: Job, first: int, how: How) -> "Saves":
        """The file for the replicas from `first` on, trained in this way."""
        return cls(folder / f"{how}-{first:05}-{len(job.seeds)}.pt", _identity(job), time.monotonic())

    def load(self, device: torch.device) -> dict[str, Any]:
        """What was saved last, or nothing."""
        if not self.path.exists():
            return {}
        try:
            saved = torch.load(self.path, map_location=device, weights_only=True)
            identity = saved.pop("identity")
        except (RuntimeError, EOFError, UnpicklingError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"{self.path} is no saved training ({type(error).__name__}): delete it") from error
        if identity != self.identity:
            raise ValueError(f"{self.path} was saved by another training: give another folder, or delete it")
        return dict(saved)

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() - self.last > max(_SECONDS, _SHARE * self.took)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write it whole; the folder is made, also where another run has finished and dropped it."""
        began = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file:
            torch.save({**state, "identity": self.identity}, file)
        self.last = time.monotonic()
        self.took = self.last - began


def begun(folder: Path) -> How | None:
    """In which way a training was begun there, if one was: it goes on in the same."""
    return next((how for how in HOWS if any(folder.glob(f"{how}-*.pt"))), None)


def _identity(job: Job) -> str:
    """Tells a job from others: all of it, of large tensors a part."""
    found = hashlib.sha256()
    for field in fields(job):
        if field.name not in ("make", "loss", "device"):  # functions have no value; a machine is not the training
            for piece in _pieces(getattr(job, field.name)):
                found.update(piece + b";")
    return found.hexdigest()


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        flat = value.detach().reshape(-1)
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield flat[:: max(1, len(flat) // _SAMPLE)].contiguous().view(torch.uint8).cpu().numpy().tobytes()
    elif isinstance(value, Mapping):
        for key, part in sorted(value.items()):
            yield str(key).encode()
            yield from _pieces(part)
    else:
        yield repr(value).encode()
