"""`train_many`: what the caller gives is checked and becomes a job, which is run here or on a Ray cluster."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from prunewald.core.base import Online
from prunewald.ensemble import carry, ray_tasks
from prunewald.ensemble.job import BatchLoss, How, Job, Start, check_data, check_rows
from prunewald.ensemble.local import train
from prunewald.ensemble.recipes import Recipe, RMSprop
from prunewald.ensemble.replicas import Make, separate
from prunewald.ensemble.result import Result
from prunewald.ensemble.start import masks_of, resolved
from prunewald.util.arguments import one_of, whole
from prunewald.util.files import FilePath
from prunewald.util.progress import progress_bar
from prunewald.util.registry import make as make_part


class RunOptions(TypedDict, total=False):
    """Where and how `train_many` runs, as its docstring says; but for rounding, none of this changes the result."""

    how: How
    chunk: int | None
    progress: bool | Callable[[int], object]
    executor: Literal["ray"] | None
    address: str | None
    device: torch.device | str | None
    folder: FilePath | None


def train_many(
    make_model: Make,
    x: Tensor,
    y: Tensor,
    *,
    loss: BatchLoss = F.cross_entropy,
    seeds: Iterable[int] | None = None,
    epochs: int,
    first_epoch: int = 0,
    batch_size: int = 128,
    optimizer: Recipe = RMSprop(lr=1e-3),  # noqa: B008 (frozen)
    resample: Tensor | Literal["bootstrap"] | None = None,
    start: Start | Result = "independent",
    optimizer_state: carry.Carried | None = None,
    keep_optimizer: bool = False,
    masks: Mapping[str, Tensor] | None = None,
    collect: Online | str | Sequence[Online | str] = (),
    **options: Unpack[RunOptions],
) -> Result:
    """Train one replica of a model for each seed, all at once.

    The initialisation, resampling, data order and dropout noise of a replica depend on its own seed alone.

    What is trained:

    - `make_model`: a function without arguments that builds the model, or a model; one that is given is copied, and
      for start="independent" its modules need reset_parameters(). Parameters with requires_grad=False keep their
      values. It is trained as after model.train(), but modules that alone are in eval mode stay in it.
    - `x`, `y`: inputs and targets, one row for each sample.
    - `loss`: a function of the outputs and targets of a batch, which gives their mean loss or their summed loss.
    - `seeds`: one for each replica; they may repeat. None: the seeds of the result to start from, or range(100).
    - `epochs`, `batch_size`: the batches of an epoch are as equal as can be, with at most `batch_size` samples.
    - `optimizer`: SGD, RMSprop, Adam or AdamW of `prunewald.ensemble`, with their settings.
    - `resample`: "bootstrap" draws data of its own for each replica, with replacement; a tensor (R, m) says which rows
      of the data each replica has.
    - `masks`: bool tensors by parameter name, True where a weight is alive, one for all replicas or (R, ...). The
      other weights are zero and stay so.
    - `collect`: one or more estimators that watch every replica, such as PseudoBootstrap(last=200), or their names.

    How it begins and goes on:

    - `start`: an "independent" initialisation for each replica; the "same" for all; tensors by name (a state_dict, or
      (R, ...) where each replica has its own); or an earlier result, with its optimizer's state if it has kept one.
    - `keep_optimizer`: keep the optimizer's state in the result, so that training can go on exactly. After E epochs,
      start=result and `first_epoch=E` go on with the order of the data and the noise of epoch E.
    - `optimizer_state`: a state of the optimizer that does not come with a result. At pruned places momentum is
      forgotten, and second moments stay.

    Where and how it runs (`RunOptions`):

    - `how`: "vmap" trains the replicas together, "loop" one after the other; "auto" finds out by a trial whether vmap
      is possible and, on a CPU, whether the plain loop is faster by more than a tenth.
    - `chunk`: how many replicas are trained at once; None: as many as fit into memory.
    - `device`: where to train; None: where `x` is.
    - `progress`: whether to show a progress bar; or a function, which is told how many replicas have finished an epoch.
    - `executor="ray"`: divide the replicas over the machines of a Ray cluster at `address` (None: this machine).
    - `folder`: save the training there, after an epoch, once a minute or less often where saving takes long. The same
      call goes on where a killed one was, to the same result. Delete the folder when the result is safe.
    """
    job = Job(
        make=separate(make_model),
        x=x,
        y=y,
        loss=loss,
        seeds=_seeds(seeds, start),
        epochs=whole("epochs", epochs, 1),
        batch_size=whole("batch_size", batch_size, 1),
        optimizer=optimizer,
        resample=resample,
        device=x.device,
        first_epoch=whole("first_epoch", first_epoch, 0),
        keep_optimizer=keep_optimizer,
    )
    return _run(_completed(job, start, optimizer_state, masks, collect), **options)


def _seeds(seeds: Iterable[int] | None, start: Start | Result) -> tuple[int, ...]:
    if seeds is None:
        seeds = start.seeds if isinstance(start, Result) else range(100)
    found = tuple(int(seed) for seed in seeds)
    if not found:
        raise ValueError("seeds is empty: give one for each replica, such as range(100)")
    return found


def _completed(
    job: Job,
    start: Start | Result,
    optimizer_state: carry.Carried | None,
    masks: Mapping[str, Tensor] | None,
    collect: Online | str | Sequence[Online | str],
) -> Job:
    """The job with what has to be checked against its model, its data and the number of its replicas."""
    check_data(job.x, job.y)
    if isinstance(job.resample, Tensor):
        check_rows("resample", job.resample, len(job.seeds), len(job.x))
    elif job.resample not in (None, "bootstrap"):
        raise ValueError(f"resample={job.resample!r}: give 'bootstrap', None, or rows of the data, (R, m)")
    if isinstance(start, Result):
        optimizer_state = start.optimizer_state if optimizer_state is None else optimizer_state
        start = start.state
    many: Sequence[Any] = collect if isinstance(collect, list | tuple) else (collect,)
    return replace(
        job,
        start=resolved(start, job),
        optimizer_state=carry.checked(optimizer_state or {}, job),
        masks=masks_of(masks, job),
        collect=tuple(_estimator(choice, job.epochs * job.batches) for choice in many),
    )


def _estimator(choice: Any, steps: int) -> Online:
    """The estimator a caller means, for a training of so many steps."""
    found = make_part("uncertainty", choice)
    if not isinstance(found, Online) or not found.learns:
        raise TypeError(f"collect={choice!r}: give what watches a training, such as PseudoBootstrap(last=200)")
    return found.with_horizon(steps) if found.horizon is None else found


def _run(
    job: Job,
    *,
    how: How = "auto",
    chunk: int | None = None,
    progress: bool | Callable[[int], object] = True,
    executor: Literal["ray"] | None = None,
    address: str | None = None,
    device: torch.device | str | None = None,
    folder: FilePath | None = None,
) -> Result:
    one_of("how", how, get_args(How))
    one_of("executor", executor, (None, "ray"))
    chunk = None if chunk is None else whole("chunk", chunk, 1)
    job = job if device is None else replace(job, device=torch.device(device))
    if executor == "ray" and folder is not None:
        raise ValueError(f"folder={os.fspath(folder)!r} is of this machine: leave it out with executor='ray'")
    shown = bool(progress) and not callable(progress)
    with progress_bar(total=len(job.seeds) * job.epochs, unit="epoch", show=shown) as bar:
        tick = progress if callable(progress) else bar.update
        if executor == "ray":
            return ray_tasks.spread(job, partial(train, how=how), chunk, address, tick)
        return train(job, how, chunk, tick, None if folder is None else Path(folder))
