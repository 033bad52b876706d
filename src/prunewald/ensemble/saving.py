"""A training that is saved on its way, so that one that was killed goes on where it was."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from prunewald.ensemble.job import Job
from prunewald.ensemble.start import first_model
from prunewald.util.files import replacing

How: TypeAlias = Literal["vmap", "loop"]
_SECONDS = 60.0  # between two savings
_SHARE = 20  # times what a saving takes, so that it takes little of the whole
_SAMPLE = 1 << 16  # elements of a tensor that tell it from others
_APART = ("make", "device", "keep_optimizer")  # the model itself is looked at; the others change nothing


class SavedError(ValueError):
    """A file in the folder of a training that is none."""


@dataclass
class SavedFile:
    """The file of some of the replicas."""

    path: Path
    last: float = field(default_factory=time.monotonic)
    took: float = 0.0

    def load(self) -> dict[str, Any]:
        """What was saved last, on the CPU, or nothing."""
        try:
            return dict(torch.load(self.path, map_location="cpu", weights_only=True))
        except FileNotFoundError:  # also where another run has finished and dropped it
            return {}
        except OSError:
            raise
        except Exception as error:  # whatever torch makes of other bytes
            raise SavedError(f"{self.path} is no saved training ({type(error).__name__}): delete it") from error

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() - self.last > max(_SECONDS, _SHARE * self.took)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write it whole."""
        began = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), replacing(self.path) as file:  # another run may drop the folder at any time
            torch.save(dict(state), file)
        self.last = time.monotonic()
        self.took = self.last - began


@dataclass(frozen=True)
class TrainingFolder:
    """Where a job is saved. Files are named by the job, so that others in the same folder are left alone."""

    path: Path
    name: str

    @classmethod
    def of(cls, path: Path, job: Job) -> "TrainingFolder":
        """For this job."""
        found = hashlib.sha256()
        for part in [first_model(job), *(getattr(job, each.name) for each in fields(job) if each.name not in _APART)]:
            for piece in _pieces(part):
                found.update(piece + b";")
        return cls(path, found.hexdigest()[:16])

    def begun(self) -> tuple[How, int] | None:
        """In which way the job was begun, and with how many replicas at once: it goes on in the same."""
        for how in get_args(How):
            for file in self.path.glob(f"{how}-00000-*-{self.name}.pt"):
                return how, int(file.name.split("-")[2])
        return None

    def file(self, how: str, first: int, size: int) -> SavedFile:
        """The file for so many replicas from `first` on."""
        return SavedFile(self.path / f"{how}-{first:05}-{size}-{self.name}.pt")


def _pieces(value: Any) -> Iterator[bytes]:
    """What tells a value from others: all of it, of large tensors a part, of functions the name."""
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
