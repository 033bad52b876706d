"""What a trial step tells of a job: whether it can be vectorised, which way is faster, how much memory it takes."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from prunewald.ensemble.job import Job
from prunewald.ensemble.loop_trainer import LoopTrainer
from prunewald.ensemble.replicas import seeded
from prunewald.ensemble.trainer import Trainer
from prunewald.ensemble.vmap_trainer import VmapTrainer

_SAME = 1e-2  # relative difference of gradients; a wrong one differs by about 1, rounding by less than 1e-3


def loss_is_sum(job: Job) -> bool:
    """Whether the loss of a batch is the sum of its samples' losses, rather than their mean."""
    trainer = LoopTrainer(job.rows(0, 1), noise=False)
    rows = trainer.job.epoch(0, trainer.job.sample())[0]
    half = rows[:, : max(2, rows.shape[1] // 2)]  # BatchNorm needs two samples
    with trainer.context():
        # A mean stays as it is where all rows are given twice, also through BatchNorm; a sum doubles.
        once, twice = (abs(float(trainer.forward(each).detach())) for each in (half, half.repeat(1, 2)))
    return 1.5 * once < twice < 3 * once


def cannot_vmap(job: Job) -> str:
    """Why the model cannot be vectorised; "" where a trial step gives what separate models give."""
    job = job.rows(0, 2)
    rows = job.epoch(0, job.sample())[0]
    singles = [LoopTrainer(job.rows(r, r + 1)) for r in range(len(job.seeds))]
    wanted = [_trial(single, rows[r : r + 1]) for r, single in enumerate(singles)]
    try:
        got = _trial(VmapTrainer(job), rows)
    except Exception as error:  # whatever vmap cannot do
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]
    for name, tensor in got.items():
        if _differ(tensor, torch.cat([each[name] for each in wanted])):
            return f"{name} differs from that of separate models"
    return ""


def _trial(trainer: Trainer, rows: Tensor) -> dict[str, Tensor]:
    """The losses, gradients and buffers after a forward and a backward pass."""
    with seeded(trainer.job.seeds[0]):
        losses = trainer.backward(rows)
    grads = {f"the gradient of {n}": p.grad for n, p in trainer.params.items() if p.grad is not None}
    buffers = {f"buffer {n}": t for n, t in trainer.untrained().items()}
    return {"the loss": losses, **trainer.stacked({**grads, **buffers})}


def _differ(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach().double(), b.detach().double()
    return not bool((a - b).norm() <= _SAME * b.norm() + 1e-7)


def step_seconds(trainer: Trainer, batches: Sequence[Tensor]) -> float:
    """How long a step takes, by replica: the shortest of these batches."""
    times = []
    with trainer.context():
        for rows in batches:
            began = time.perf_counter()
            trainer.step(rows)
            times.append(time.perf_counter() - began)
    return min(times) / len(trainer.job.seeds)


def loop_is_faster(job: Job, chunk: int) -> str:
    """How much faster a plain loop is on this CPU; "" where it is not."""
    job = job.rows(0, chunk)
    together = step_seconds(VmapTrainer(job), [job.epoch(0, job.sample())[0]] * 4)
    job = job.rows(0, 1)
    alone = step_seconds(LoopTrainer(job), [job.epoch(0, job.sample())[0]] * 6)
    return "" if together <= alone else f"faster here ({1e3 * alone:.2f} ms a step against {1e3 * together:.2f})"


def footprint(job: Job) -> int:
    """How many bytes a replica takes in training: weights, optimizer, what is collected, activations."""
    trainer = LoopTrainer(job.rows(0, 1))  # older torch cannot count what a vectorised pass saves
    rows = trainer.job.epoch(0, trainer.job.sample())[0]
    held = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal held
        held += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        trainer.backward(rows)
    weights = sum(t.nbytes for t in (*trainer.params.values(), *trainer.untrained().values()))
    # Six are weights, gradients, two moments and the update, four an estimator; the backward pass takes as much again.
    return (weights * (6 + 4 * len(job.collect)) + 2 * held) // len(trainer.job.seeds) + 16 * job.size
