"""A job trained on this machine."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from prunewald.ensemble import trial_step
from prunewald.ensemble.chunks import in_chunks, memory
from prunewald.ensemble.job import Job
from prunewald.ensemble.loop_trainer import LoopTrainer
from prunewald.ensemble.result import Result, joined
from prunewald.ensemble.saving import TrainingFolder
from prunewald.ensemble.vmap_trainer import VmapTrainer
from prunewald.util.progress import note

How = Literal["auto", "vmap", "loop"]


def train(
    job: Job,
    how: How,
    chunk: int | None = None,
    tick: Callable[[int], object] = bool,
    folder: Path | None = None,
) -> Result:
    """Train a job here, in as many chunks as memory asks for."""
    job = replace(job, summed=trial_step.loss_is_sum(job))
    saved = None if folder is None else TrainingFolder.of(folder, job)
    if saved and (begun := saved.begun()):
        way, size = begun
        if how in ("auto", way):
            how, chunk = way, chunk or size
    reason = "asked for" if how == "loop" else ""
    if how == "auto" and (reason := trial_step.cannot_vmap(job)):
        note(f"prunewald: the replicas are trained one by one, since the model cannot be vectorised: {reason}")
    if not reason and chunk is None:
        chunk = max(1, min(len(job.seeds), memory(job.device) // trial_step.footprint(job)))
    if how == "auto" and not reason and job.device.type == "cpu":
        reason = trial_step.loop_is_faster(job, min(len(job.seeds), chunk or 1, 8))

    def fit(trainer: type[LoopTrainer] | type[VmapTrainer], first: int, last: int) -> Result:
        file = None if saved is None else saved.file(trainer.how, first, last - first)
        return trainer(job.rows(first, last)).fit(tick, file, more=last < len(job.seeds))

    if reason:
        alone = [fit(LoopTrainer, r, r + 1) for r in range(len(job.seeds))]
        return replace(joined(alone), how=f"loop: {reason}")

    def part(first: int, last: int) -> Result:
        torch.cuda.empty_cache()  # nothing can be freed while a graph is captured
        return fit(VmapTrainer, first, last)

    return joined(in_chunks(part, len(job.seeds), chunk or 1))
