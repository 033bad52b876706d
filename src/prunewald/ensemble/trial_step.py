"""What a trial step tells of a job: whether its loss is a sum, whether vmap can do it, how much memory it takes."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.loop_trainer import LoopTrainer
from prunewald.ensemble.replicas import seeded
from prunewald.ensemble.trainer import Trainer
from prunewald.ensemble.vmap_trainer import VmapTrainer

_SAME = 1e-2  # relative difference of gradients; a wrong one differs by about 1, rounding by less than 1e-3
_ROUNDING = 10  # how many times farther rounding may take vmap, which adds up in another order


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
    wanted = _apart(job, rows)
    try:
        got = _trial(VmapTrainer(job), rows)
    except Exception as error:  # whatever vmap cannot do
        return _said(error)
    differ = {name for name in got if not _distance(got[name], wanted[name]) <= _SAME * wanted[name].double().norm()}
    rounding = _rounding(job, rows, wanted) if differ else {}
    for name in sorted(differ):
        if not _distance(got[name], wanted[name]) <= _ROUNDING * rounding.get(name, 0.0):
            return f"{name} differs from that of separate models"
    return ""


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200]


def _apart(job: Job, rows: Tensor, dtype: torch.dtype | None = None) -> TensorDict:
    """What a trial with separate models gives, one row for each replica; with a `dtype`, computed in it."""
    singles = [LoopTrainer(job.rows(r, r + 1)) for r in range(len(job.seeds))]
    found = [_trial(single, rows[r : r + 1], dtype) for r, single in enumerate(singles)]
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def _trial(trainer: Trainer, rows: Tensor, dtype: torch.dtype | None = None) -> TensorDict:
    """The losses, gradients and buffers after a forward and a backward pass."""
    if dtype is not None:
        rows = _convert(trainer, rows, dtype)
    with seeded(trainer.job.seeds[0]):
        losses = trainer.backward(rows)
    grads = {f"the gradient of {n}": p.grad for n, p in trainer.params.items() if p.grad is not None}
    buffers = {f"buffer {n}": t for n, t in trainer.untrained().items()}
    return {"the loss": losses, **trainer.stacked({**grads, **buffers})}


def _convert(trainer: Trainer, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Let a trainer of one replica compute in another precision; returns where its rows are from then on."""
    trainer.model.to(dtype)
    loss = trainer.job.loss
    if isinstance(loss, nn.Module):  # it may hold weights of classes
        trainer.job = replace(trainer.job, loss=copy.deepcopy(loss).to(dtype))
    x, y = (data[rows[0]] for data in (trainer.x, trainer.y))  # only these rows, since all may be large
    trainer.x, trainer.y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
    return torch.arange(rows.shape[1], device=rows.device)[None]


def _rounding(job: Job, rows: Tensor, wanted: TensorDict) -> dict[str, float]:
    """How far rounding takes each result of separate models from what it is in theory; {} where it cannot be told.

    A gradient may be zero in theory, as that of a bias before BatchNorm is; then all of it is rounding. It is seen by
    computing the same in another precision.
    """
    own = max(torch.finfo(t.dtype).eps for t in wanted.values() if t.is_floating_point())
    dtype = torch.float64 if own > torch.finfo(torch.float64).eps else torch.float32
    try:
        other = _apart(job, rows, dtype)
    except Exception:  # a model may be written for one precision
        return {}
    share = min(1.0, own / torch.finfo(dtype).eps)  # of the distance: most of it comes from the coarser precision
    return {name: share * _distance(tensor, other[name]) for name, tensor in wanted.items() if name in other}


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).norm())


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
