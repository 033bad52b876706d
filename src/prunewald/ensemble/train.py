"""The front door: train R copies of a model together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from prunewald.ensemble import choose, cluster
from prunewald.ensemble.job import Job, Loss, Make, Start, masks_of, resolved
from prunewald.ensemble.recipes import Recipe, RMSprop
from prunewald.ensemble.result import Result, joined
from prunewald.ensemble.together import Together
from prunewald.ensemble.trainer import Alone
from prunewald.progress import note, progress_bar
from prunewald.registry import make as make_part
from prunewald.uncertainty import Online, PseudoBootstrap

How = Literal["auto", "vmap", "loop"]


def train_many(
    make_model: Make,
    x: Tensor,
    y: Tensor,
    *,
    loss: Loss = F.cross_entropy,
    seeds: Iterable[int] = range(100),
    epochs: int,
    batch_size: int = 128,
    optimizer: Recipe = RMSprop(lr=1e-3),  # noqa: B008 (frozen)
    resample: Tensor | Literal["bootstrap"] | None = None,
    start: Start | Result = "independent",
    masks: Mapping[str, Tensor] | None = None,
    collect: Online | str | Sequence[Online | str] = (),
    how: How = "auto",
    chunk: int | None = None,
    progress: bool = True,
    executor: Literal["ray"] | None = None,
    address: str | None = None,
    device: torch.device | str | None = None,
) -> Result:
    """Train one replica of a model for each seed, all at once.

    - `make_model`: a function without arguments that builds the model, or a model (its parts need reset_parameters()
      for start="independent").
    - `resample`: "bootstrap" draws each replica's own data with replacement; or rows of the data, (R, m).
    - `start`: "independent" initialisations, the "same" for all, or tensors by name (a state_dict; (R, ...) where each
      replica has its own; an earlier result to train on).
    - `masks`: by parameter name, True where a weight lives, for all or (R, ...): the others are and stay zero.
    - `collect`: estimators such as PseudoBootstrap(last=200), for every replica.
    - `how`: "vmap", "loop", or what a trial finds possible and, on a CPU, faster. `chunk`: replicas at once; None: as
      many as fit into memory.
    - `executor="ray"`: divide the replicas over the machines of a Ray cluster at `address` (None: this machine).

    Initialisation, resampling, data order and dropout noise of a replica depend on its own seed only.
    """
    job = Job(
        make=make_model,
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
    )
    _check(job)
    if how not in ("auto", "vmap", "loop"):
        raise ValueError(f"how={how!r}: must be 'auto', 'vmap' or 'loop'")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk!r}: must be at least 1")
    state = start.state if isinstance(start, Result) else start
    job = replace(
        job,
        start=resolved(state, job),
        masks=masks_of(masks, job),
        collect=_collectors(collect, job.epochs * job.batches),
    )
    if executor == "ray":
        return cluster.spread(job, partial(train, how=how), chunk, address, progress)
    if executor is not None:
        raise ValueError(f"executor={executor!r}: must be 'ray' or None")
    with progress_bar(total=len(job.seeds) * epochs, unit="epoch", show=progress) as bar:
        return train(job, how, chunk, bar.update)


def train(job: Job, how: How, chunk: int | None = None, tick: Callable[[int], object] = bool) -> Result:
    """Train a job here, in as many chunks as memory asks for."""
    reason = "asked for" if how == "loop" else ""
    if how == "auto" and (reason := choose.why_alone(job)):
        note(f"prunewald: the replicas are trained one by one, since the model cannot be vectorised: {reason}")
    if not reason and chunk is None:
        chunk = max(1, min(len(job.seeds), choose.memory(job.device) // choose.footprint(job)))
    if how == "auto" and not reason and job.device.type == "cpu":
        reason = choose.faster_alone(job, min(len(job.seeds), chunk or 1, 8))
    if reason:
        alone = [Alone(job.rows(r, r + 1)).fit(tick) for r in range(len(job.seeds))]
        return replace(joined(alone), how=f"loop: {reason}")
    return _together(job, chunk or len(job.seeds), tick)


def _together(job: Job, chunk: int, tick: Callable[[int], object]) -> Result:
    done: list[Result] = []
    first = 0
    while first < len(job.seeds):
        try:
            done.append(Together(job.rows(first, first + chunk)).fit(tick))
            first += chunk
        except torch.cuda.OutOfMemoryError:
            if chunk == 1:
                raise
            chunk = (chunk + 1) // 2
        torch.cuda.empty_cache()
    return joined(done)


def _check(job: Job) -> None:
    for name in ("epochs", "batch_size"):
        if getattr(job, name) < 1:
            raise ValueError(f"{name}={getattr(job, name)!r}: must be at least 1")
    if not job.seeds:
        raise ValueError("seeds is empty: give one for each replica, such as range(100)")
    if len(job.x) != len(job.y):
        raise ValueError(f"x has {len(job.x)} rows and y has {len(job.y)}")
    if isinstance(job.resample, Tensor):
        if job.resample.dim() != 2 or len(job.resample) != len(job.seeds):
            raise ValueError(
                f"resample has shape {tuple(job.resample.shape)}: must be ({len(job.seeds)}, m), rows of x a replica"
            )
        low, high = (int(end) for end in job.resample.aminmax()) if job.resample.numel() else (0, -1)
        if not 0 <= low <= high < len(job.x) or job.resample.is_floating_point():
            raise ValueError(f"resample has rows {low} to {high}: must be whole numbers from 0 to {len(job.x) - 1}")
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
