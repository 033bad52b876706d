"""What is to be trained: the model, the data, and all that every way of training needs to know."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from prunewald.core.base import Online
from prunewald.ensemble import draws
from prunewald.ensemble.recipes import Recipe
from prunewald.ensemble.replicas import Make

BatchLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
How: TypeAlias = Literal["auto", "vmap", "loop"]
Start: TypeAlias = Literal["independent", "same"] | Mapping[str, Tensor]
TensorDict: TypeAlias = dict[str, Tensor]  # by parameter or buffer name


@dataclass(frozen=True, kw_only=True)
class Job:
    """Replicas to train, one for each seed. Tensors by name have one row for each replica, (R, ...)."""

    make: Make
    x: Tensor
    y: Tensor
    loss: BatchLoss
    seeds: tuple[int, ...]
    epochs: int
    batch_size: int
    optimizer: Recipe
    resample: Tensor | Literal["bootstrap"] | None = None
    start: Start = "independent"
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    collect: tuple[Online, ...] = ()
    device: torch.device
    summed: bool = False  # whether the loss of a batch is the sum over its samples, not the mean
    first_epoch: int = 0  # the number of the first epoch, which decides the order of the data and the noise
    optimizer_state: Mapping[str, TensorDict] = field(default_factory=dict)  # by parameter name, then by torch's key
    keep_optimizer: bool = False

    def rows(self, first: int, last: int) -> "Job":
        """The same job for the replicas from `first` to before `last`."""
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
        """How many rows of data a replica sees in an epoch."""
        return self.resample.shape[1] if isinstance(self.resample, Tensor) else len(self.x)

    @property
    def batches(self) -> int:
        """How many steps an epoch has: its batches are as equal as can be, and at most `batch_size`."""
        return math.ceil(self.size / self.batch_size)

    def sample(self) -> Tensor | None:
        """Which rows of the data each replica has, (R, size); None where each has all of them."""
        if self.resample == "bootstrap":
            return draws.bootstrap(self.seeds, self.size, self.device)
        return self.resample.to(self.device) if isinstance(self.resample, Tensor) else None

    def epoch(self, number: int, sample: Tensor | None) -> tuple[Tensor, ...]:
        """The batches of an epoch, each as rows of the data, (R, batch)."""
        order = draws.order(self.seeds, self.size, number, self.device)
        rows = order if sample is None else sample.gather(1, order)
        return rows.tensor_split(self.batches, dim=1)


def check_data(x: Tensor, y: Tensor) -> None:
    """Refuse inputs and targets of different lengths."""
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}: give one target for each input")


def check_rows(what: str, rows: Tensor, replicas: int, size: int) -> None:
    """Refuse rows of the data that are not (R, m) whole numbers from 0 to before `size`."""
    if rows.dim() != 2 or len(rows) != replicas:
        raise ValueError(f"{what} has shape {tuple(rows.shape)}: must be ({replicas}, m), rows of x for each replica")
    low, high = (int(end) for end in rows.aminmax()) if rows.numel() else (0, -1)
    if not 0 <= low <= high < size or rows.is_floating_point():
        raise ValueError(f"{what} has rows {low} to {high}: must be whole numbers from 0 to {size - 1}")
