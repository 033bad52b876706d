"""What is to be trained, and where each replica starts."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from prunewald.ensemble import draws
from prunewald.ensemble.recipes import Recipe
from prunewald.ensemble.replicas import Make, build, tensors, train_
from prunewald.uncertainty import Online
from prunewald.util.tensors import zero_

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


def first_model(job: Job) -> nn.Module:
    """The model that start="same" begins with: the one given, or the first seed's."""
    return job.make if isinstance(job.make, nn.Module) else build(job.make, job.seeds[0])


def ready_model(job: Job) -> nn.Module:
    """A model to be trained, on the job's device; its tensors are those of `initial` instead."""
    if isinstance(job.make, nn.Module) and job.start != "independent":
        return train_(copy.deepcopy(job.make).to(job.device))  # which may have no reset_parameters()
    return train_(build(job.make, job.seeds[0]).to(job.device))


def initial(job: Job) -> TensorDict:
    """The parameters and buffers each replica starts with, (R, ...), masked, on the job's device."""
    state = _unmasked(job)
    for name, mask in job.masks.items():
        zero_(state[name], mask.to(job.device))
    return state


def _unmasked(job: Job) -> TensorDict:
    if job.start == "independent":
        models = (build(job.make, seed) for seed in job.seeds)
        return _stacked([_state(model) for model in models], job.device)
    assert not isinstance(job.start, str), "start='same' is resolved before the replicas are divided"
    return {name: t.to(job.device).clone(memory_format=torch.contiguous_format) for name, t in job.start.items()}


def _state(model: nn.Module) -> TensorDict:
    return {name: tensor.detach() for name, tensor in tensors(model).items()}


def _stacked(states: Sequence[TensorDict], device: torch.device) -> TensorDict:
    return {name: torch.stack([state[name] for state in states]).to(device) for name in states[0]}


def resolved(start: Start, job: Job) -> Start:
    """`start` with one row a replica wherever it does not depend on their seeds."""
    if start == "independent":
        return start
    model = first_model(job)
    own = _state(model)
    if isinstance(start, str):
        if start != "same":
            raise ValueError(f"start={start!r}: must be 'independent', 'same', or tensors by name")
        start = own
    known = model.state_dict().keys() | own.keys()
    if wrong := (model.state_dict().keys() & own.keys()) - start.keys() or start.keys() - known:
        raise ValueError(f"start and the model differ in {sorted(wrong)[0]!r}; the model has {', '.join(own)}")
    whole = {**own, **start}  # buffers that are not saved are the model's own
    return {n: per_replica(f"start[{n!r}]", whole[n].to(t.dtype), t, len(job.seeds)) for n, t in own.items()}


def masks_of(masks: Mapping[str, Tensor] | None, job: Job) -> TensorDict:
    """Masks (True: the weight lives) with one row a replica."""
    if not masks:
        return {}
    own = dict(first_model(job).named_parameters())
    if unknown := masks.keys() - own.keys():
        raise ValueError(f"masks: no parameter {sorted(unknown)[0]!r}; the model has {', '.join(own)}")
    return {n: per_replica(f"masks[{n!r}]", m.bool(), own[n], len(job.seeds)) for n, m in masks.items()}


def per_replica(what: str, tensor: Tensor, like: Tensor, replicas: int) -> Tensor:
    """One row a replica: a tensor shaped like the parameter is the same for all."""
    if tensor.shape == like.shape:
        return tensor.detach().expand(replicas, *like.shape)
    if tensor.shape == (replicas, *like.shape):
        return tensor.detach()
    raise ValueError(
        f"{what} has shape {tuple(tensor.shape)}: must be {tuple(like.shape)}, or {(replicas, *like.shape)} for "
        f"{replicas} replicas"
    )


def check_rows(what: str, rows: Tensor, replicas: int, size: int) -> None:
    """Rows of the data for each replica are whole numbers, and there."""
    if rows.dim() != 2 or len(rows) != replicas:
        raise ValueError(f"{what} has shape {tuple(rows.shape)}: must be ({replicas}, m), rows of x a replica")
    low, high = (int(end) for end in rows.aminmax()) if rows.numel() else (0, -1)
    if not 0 <= low <= high < size or rows.is_floating_point():
        raise ValueError(f"{what} has rows {low} to {high}: must be whole numbers from 0 to {size - 1}")
