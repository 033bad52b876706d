"""What is to be trained, and where each replica starts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from prunewald.ensemble import draws
from prunewald.ensemble.recipes import Recipe
from prunewald.ensemble.replicas import Make
from prunewald.uncertainty import Online

BatchLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Start: TypeAlias = Literal["independent", "same"] | Mapping[str, Tensor]
TensorDict: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """Replicas to train: one for each seed. TensorDict by name hold one row a replica, (R, ...)."""

    make: Make
    x: Tensor
    y: Tensor
    loss: BatchLoss
    seeds: tuple[int, ...]
    epochs: int
    batch_size: int
    optimizer: Recipe
    resample: Tensor | Literal["bootstrap"] | None
    start: Start
    masks: Mapping[str, Tensor]
    collect: tuple[Online, ...]
    device: torch.device
    summed: bool = False  # the loss is the sum over a batch, not the mean
    first_epoch: int = 0  # what the epochs are numbered from
    optimizer_state: Mapping[str, TensorDict] = field(default_factory=dict)
    keep_optimizer: bool = False

    def rows(self, first: int, last: int) -> "Job":
        """The same for some of the replicas."""
        at = slice(first, last)
        return replace(
            self,
            seeds=self.seeds[at],
            resample=self.resample[at] if isinstance(self.resample, Tensor) else self.resample,
            start=self.start if isinstance(self.start, str) else {n: t[at] for n, t in self.start.items()},
            masks={name: mask[at] for name, mask in self.masks.items()},
            optimizer_state={n: {k: t[at] for k, t in table.items()} for n, table in self.optimizer_state.items()},
        )

    @property
    def size(self) -> int:
        """Rows of data a replica sees in an epoch."""
        return self.resample.shape[1] if isinstance(self.resample, Tensor) else len(self.x)

    @property
    def batches(self) -> int:
        """Steps an epoch: batches are as equal as can be, at most `batch_size`."""
        return math.ceil(self.size / self.batch_size)

    def sample(self) -> Tensor | None:
        """Which rows of the data each replica has, (R, size); None: all of them."""
        if self.resample == "bootstrap":
            return draws.bootstrap(self.seeds, self.size, self.device)
        return self.resample.to(self.device) if isinstance(self.resample, Tensor) else None

    def epoch(self, number: int, sample: Tensor | None) -> tuple[Tensor, ...]:
        """The batches of an epoch, as rows of the data: (R, batch) each."""
        order = draws.order(self.seeds, self.size, number, self.device)
        rows = order if sample is None else sample.gather(1, order)
        return rows.tensor_split(self.batches, dim=1)


def check_rows(what: str, rows: Tensor, replicas: int, size: int) -> None:
    """Rows of the data for each replica are whole numbers, and there."""
    if rows.dim() != 2 or len(rows) != replicas:
        raise ValueError(f"{what} has shape {tuple(rows.shape)}: must be ({replicas}, m), rows of x a replica")
    low, high = (int(end) for end in rows.aminmax()) if rows.numel() else (0, -1)
    if not 0 <= low <= high < size or rows.is_floating_point():
        raise ValueError(f"{what} has rows {low} to {high}: must be whole numbers from 0 to {size - 1}")
