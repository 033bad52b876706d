"""The front door: train R copies of a model together."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from prunewald.ensemble import carry
from prunewald.ensemble import ray_tasks as cluster
from prunewald.ensemble import trial as choose
from prunewald.ensemble.chunks import in_chunks, memory
from prunewald.ensemble.job import Job, Loss, Start, check_rows, masks_of, resolved
from prunewald.ensemble.recipes import Recipe, RMSprop
from prunewald.ensemble.replicas import Make, separate
from prunewald.ensemble.result import Result, joined
from prunewald.ensemble.saving import Folder
from prunewald.ensemble.together import Together
from prunewald.ensemble.trainer import Alone
from prunewald.uncertainty import Online, PseudoBootstrap
from prunewald.util.files import FilePath
from prunewald.util.progress import note, progress_bar
from prunewald.util.registry import make as make_part

How = Literal["auto", "vmap", "loop"]


def train_many(
    make_model: Make,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss = F.cross_entropy,
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
    how: How = "auto",
    chunk: int | None = None,
    progress: bool | Callable[[int], object] = True,
    executor: Literal["ray"] | None = None,
    address: str | None = None,
    device: torch.device | str | None = None,
    folder: FilePath | None = None,
) -> Result:
    """Train one replica of a model for each seed, all at once.

    - `make_model`: a function without arguments that builds the model, or a model (its parts need reset_parameters()
      for start="independent"). Parameters with requires_grad=False keep the values they have there. It is trained as
      after model.train(), except that parts in eval mode by themselves, in a model that is not, stay so.
    - `loss`: of a batch, its mean or its sum.
    - `seeds`: one for each replica, which may repeat; None: those of the result to start from, or range(100).
    - `resample`: "bootstrap" draws each replica's own data with replacement; or rows of the data, (R, m).
    - `start`: "independent" initialisations, the "same" for all, or tensors by name (a state_dict; (R, ...) where each
      replica has its own; an earlier result to train on, with the optimizer's state if it has kept one).
    - `keep_optimizer`: the result has the optimizer's state, to train on exactly: after E epochs, with start=result and
      first_epoch=E, which goes on with their data order and noise. `optimizer_state` gives one apart from a result. At
      pruned places momentum is forgotten, second moments stay.
    - `masks`: by parameter name, True where a weight lives, for all or (R, ...): the others are and stay zero.
    - `collect`: estimators such as PseudoBootstrap(last=200), for every replica.
    - `how`: "vmap", "loop", or what a trial finds possible and, on a CPU, faster. `chunk`: replicas at once; None: as
      many as fit into memory.
    - `progress`: show a bar; or a function, which is told how many replicas have finished an epoch.
    - `executor="ray"`: divide the replicas over the machines of a Ray cluster at `address` (None: this machine).
    - `folder`: the training is saved there, after an epoch, each minute or, if that takes long, less often. The same
      call goes on where a killed one was, to the same result; delete the folder when the result is safe.

    Initialisation, resampling, data order and dropout noise of a replica depend on its own seed only.
    """
    if seeds is None:
        seeds = start.seeds if isinstance(start, Result) else range(100)
    job = Job(
        make=separate(make_model),
        x=x,
        y=y,
        loss=loss,
        seeds=tuple(int(seed) for seed in seeds),
        epochs=epochs,
        batch_size=batch_size,
        optimizer=optimizer,
        resample=resample,
        start="independent",
        masks={},
        collect=(),
        device=torch.device(x.device if device is None else device),
        first_epoch=first_epoch,
        keep_optimizer=keep_optimizer,
    )
    _check(job)
    if how not in ("auto", "vmap", "loop"):
        raise ValueError(f"how={how!r}: must be 'auto', 'vmap' or 'loop'")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk!r}: must be at least 1")
    if isinstance(start, Result):
        optimizer_state = start.optimizer_state if optimizer_state is None else optimizer_state
        start = start.state
    job = replace(
        job,
        start=resolved(start, job),
        optimizer_state=carry.checked(optimizer_state or {}, job),
        masks=masks_of(masks, job),
        collect=_collectors(collect, job.epochs * job.batches),
    )
    if executor == "ray":
        if folder is not None:
            raise ValueError(f"folder={os.fspath(folder)!r} is of this machine: leave it out with executor='ray'")
        return cluster.spread(job, partial(train, how=how), chunk, address, progress is True)
    if executor is not None:
        raise ValueError(f"executor={executor!r}: must be 'ray' or None")
    with progress_bar(total=len(job.seeds) * epochs, unit="epoch", show=progress is True) as bar:
        tick = progress if callable(progress) else bar.update
        return train(job, how, chunk, tick, None if folder is None else Path(folder))


def train(
    job: Job,
    how: How,
    chunk: int | None = None,
    tick: Callable[[int], object] = bool,
    folder: Path | None = None,
) -> Result:
    """Train a job here, in as many chunks as memory asks for."""
    job = replace(job, summed=choose.adds_up(job))
    saved = None if folder is None else Folder.of(folder, job)
    if saved and (begun := saved.begun()):
        way, size = begun
        if how in ("auto", way):
            how, chunk = way, chunk or size
    reason = "asked for" if how == "loop" else ""
    if how == "auto" and (reason := choose.why_alone(job)):
        note(f"prunewald: the replicas are trained one by one, since the model cannot be vectorised: {reason}")
    if not reason and chunk is None:
        chunk = max(1, min(len(job.seeds), memory(job.device) // choose.footprint(job)))
    if how == "auto" and not reason and job.device.type == "cpu":
        reason = choose.faster_alone(job, min(len(job.seeds), chunk or 1, 8))

    def fit(trainer: type[Alone] | type[Together], first: int, last: int) -> Result:
        file = None if saved is None else saved.saves(trainer.how, first, last - first)
        return trainer(job.rows(first, last)).fit(tick, file, more=last < len(job.seeds))

    if reason:
        alone = [fit(Alone, r, r + 1) for r in range(len(job.seeds))]
        return replace(joined(alone), how=f"loop: {reason}")

    def part(first: int, last: int) -> Result:
        torch.cuda.empty_cache()  # nothing can be freed while a graph is captured
        return fit(Together, first, last)

    return joined(in_chunks(part, len(job.seeds), chunk or 1))


def _check(job: Job) -> None:
    for name, least in (("epochs", 1), ("batch_size", 1), ("first_epoch", 0)):
        if getattr(job, name) < least:
            raise ValueError(f"{name}={getattr(job, name)!r}: must be at least {least}")
    if not job.seeds:
        raise ValueError("seeds is empty: give one for each replica, such as range(100)")
    if len(job.x) != len(job.y):
        raise ValueError(f"x has {len(job.x)} rows and y has {len(job.y)}")
    if isinstance(job.resample, Tensor):
        check_rows("resample", job.resample, len(job.seeds), len(job.x))
    elif job.resample not in (None, "bootstrap"):
        raise ValueError(f"resample={job.resample!r}: must be 'bootstrap', None, or rows of the data")


def _collectors(collect: Online | str | Sequence[Online | str], steps: int) -> tuple[Online, ...]:
    many: Sequence[Any] = collect if isinstance(collect, list | tuple) else (collect,)
    return tuple(_to_the_end(make_part("uncertainty", choice), steps) for choice in many)


def _to_the_end(recipe: Any, steps: int) -> Any:
    """The length of the training is known here."""
    if isinstance(recipe, PseudoBootstrap) and recipe.total_steps is None:
        return replace(recipe, total_steps=steps)
    return recipe
