"""A job trained on this machine: together or one by one, in chunks that fit into memory, saved on its way if asked."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from prunewald.ensemble import race, trial_step
from prunewald.ensemble.chunks import in_chunks, memory
from prunewald.ensemble.job import How, Job
from prunewald.ensemble.loop_trainer import LoopTrainer
from prunewald.ensemble.result import Result, joined
from prunewald.ensemble.saving import TrainingFolder
from prunewald.ensemble.vmap_trainer import VmapTrainer
from prunewald.util.progress import note


def train(
    job: Job,
    how: How,
    chunk: int | None = None,
    tick: Callable[[int], object] = bool,
    folder: Path | None = None,
) -> Result:
    """Train a job here; `tick` is told how many replicas have finished an epoch, each time that some have."""
    job = replace(job, summed=trial_step.loss_is_sum(job))
    saved = None if folder is None else TrainingFolder.of(folder, job)
    if saved and (begun := saved.begun()) and how in ("auto", begun[0]):
        how, chunk = begun[0], chunk or begun[1]
    reason, size = _way(job, how, chunk)

    def fit(kind: type[LoopTrainer] | type[VmapTrainer], first: int, last: int) -> Result:
        file = None if saved is None else saved.file(kind.way, first, last - first)
        return kind(job.rows(first, last)).fit(tick, file, more=last < len(job.seeds))

    if reason:
        return replace(joined([fit(LoopTrainer, r, r + 1) for r in range(len(job.seeds))]), how=f"loop: {reason}")

    def together(first: int, last: int) -> Result:
        torch.cuda.empty_cache()  # nothing can be freed while a graph is captured
        return fit(VmapTrainer, first, last)

    return joined(in_chunks(together, len(job.seeds), size))


def _way(job: Job, how: How, chunk: int | None) -> tuple[str, int]:
    """Why the replicas are trained one by one, or "" where they are trained together; and how many are at once."""
    if how == "loop":
        return "asked for", 1
    if how == "auto" and (reason := trial_step.cannot_vmap(job)):
        note(f"prunewald: the replicas are trained one by one, since the model cannot be vectorised: {reason}")
        return reason, 1
    if chunk is None:
        chunk = max(1, min(len(job.seeds), memory(job.device) // trial_step.footprint(job)))
    if how == "auto" and job.device.type == "cpu":
        return race.loop_is_faster(job, min(len(job.seeds), chunk, 8)), chunk
    return "", chunk
