"""What is to be trained, and where each replica starts."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from prunewald.ensemble import draws
from prunewald.ensemble.recipes import Recipe
from prunewald.uncertainty import Online

Make: TypeAlias = Callable[[], nn.Module] | nn.Module
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Start: TypeAlias = Literal["independent", "same"] | Mapping[str, Tensor]
Table: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """Replicas to train: one for each seed. Tensors by name hold one row a replica, (R, ...)."""

    make: Make
    x: Tensor
    y: Tensor
    loss: Loss
    seeds: tuple[int, ...]
    epochs: int
    batch_size: int
    optimizer: Recipe
    resample: Tensor | Literal["bootstrap"] | None
    start: Start
    masks: Mapping[str, Tensor]
    collect: tuple[Online, ...]
    device: torch.device

    def rows(self, first: int, last: int) -> "Job":
        """The same for some of the replicas."""
        at = slice(first, last)
        return replace(
            self,
            seeds=self.seeds[at],
            resample=self.resample[at] if isinstance(self.resample, Tensor) else self.resample,
            start=self.start if isinstance(self.start, str) else {n: t[at] for n, t in self.start.items()},
            masks={name: mask[at] for name, mask in self.masks.items()},
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


def build(make: Make, seed: int) -> nn.Module:
    """A new model, initialised by this seed alone."""
    with seeded(seed):
        return _fresh(make) if isinstance(make, nn.Module) else make()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generators begin at this seed, and afterwards go on where they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _fresh(module: nn.Module) -> nn.Module:
    module = copy.deepcopy(module)
    for name, part in module.named_modules():
        reset: Any = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
        elif next(part.parameters(recurse=False), None) is not None:
            raise ValueError(
                f"{name or 'the model'} ({type(part).__name__}) has no reset_parameters(): "
                "give a function that builds the model, or start='same'"
            )
    return module


def first_model(job: Job) -> nn.Module:
    """The model that start="same" begins with: the one given, or the first seed's."""
    return job.make if isinstance(job.make, nn.Module) else build(job.make, job.seeds[0])


def initial(job: Job) -> Table:
    """The parameters and buffers each replica starts with, (R, ...), on the job's device."""
    if job.start == "independent":
        models = (build(job.make, seed) for seed in job.seeds)
        return _stacked([_state(model) for model in models], job.device)
    assert not isinstance(job.start, str), "start='same' is resolved before the replicas are divided"
    return {name: t.to(job.device).clone(memory_format=torch.contiguous_format) for name, t in job.start.items()}


def _state(model: nn.Module) -> Table:
    return {n: t.detach() for n, t in (*model.named_parameters(), *model.named_buffers())}


def _stacked(states: Sequence[Table], device: torch.device) -> Table:
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


def masks_of(masks: Mapping[str, Tensor] | None, job: Job) -> Table:
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
