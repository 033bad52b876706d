"""Where an experiment runs: the device, the processes, the time."""

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

import prunewald as pw
from prunewald.util.arguments import real, whole


class MachineError(ValueError):
    """A device that was asked for and is not there, or a number of processes or minutes that makes no sense."""


@dataclass(frozen=True)
class Machine:
    """Where an experiment runs: nothing of it changes what a result is of."""

    data: Path | None = None
    device: str | None = None
    executor: str | None = None
    address: str | None = None
    workers: int = 0  # processes on a CPU; 0: one a processor
    piece: int = 0  # networks trained between two savings; 0: what takes some minutes
    minutes: float | None = None  # after the piece in which they are over it stops
    limit_seconds: float | None = None  # it stops before, where the next piece would not be done by then

    def __post_init__(self) -> None:
        try:
            whole("--workers", self.workers)
            whole("--piece", self.piece)
            if self.minutes is not None:
                real("--minutes", self.minutes, least=0)
            if self.limit_seconds is not None:
                real("--limit-seconds", self.limit_seconds, least=0)
        except ValueError as error:
            raise MachineError(str(error)) from None

    @property
    def stops(self) -> str:
        """When it stops by itself, in words; "" where it does not."""
        if self.limit_seconds is not None:
            return f"before {self.limit_seconds:g} seconds"
        return "" if self.minutes is None else f"after {self.minutes:g} minutes"

    def torch_device(self) -> torch.device:
        """The device asked for, or a GPU where there is one."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        kind, _, number = name.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
            raise MachineError(f"--device {name}: give cpu or cuda")
        if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
            raise MachineError(f"--device {name}: there is no such GPU here, or torch is without CUDA; give cpu")
        return torch.device(name)


def environment(device: torch.device) -> dict[str, str]:
    """What a result was made with, to be kept beside it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "prunewald": pw.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
    }
