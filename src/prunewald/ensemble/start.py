"""Where each replica starts: its model, its tensors, and the masks that hold from the beginning."""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from prunewald.ensemble.job import Job, Start, TensorDict
from prunewald.ensemble.replicas import build, tensors, train_
from prunewald.model.masking import check_masks
from prunewald.util.tensors import zero_


def first_model(job: Job) -> nn.Module:
    """The model that start="same" begins with: the one given, or what the function builds for the first seed."""
    return job.make if isinstance(job.make, nn.Module) else build(job.make, job.seeds[0])


def ready_model(job: Job) -> nn.Module:
    """A model in training mode on the job's device; its own values do not matter, `initial` has those to start with."""
    if isinstance(job.make, nn.Module) and job.start != "independent":
        return train_(copy.deepcopy(job.make).to(job.device))  # not built: it may have no reset_parameters()
    return train_(build(job.make, job.seeds[0]).to(job.device))


def initial(job: Job) -> TensorDict:
    """The parameters and buffers that each replica starts with, (R, ...), masked, on the job's device."""
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
    """The start as tensors with one row for each replica; "independent" stays, since it depends on their seeds."""
    if start == "independent":
        return start
    model = first_model(job)
    own = _state(model)
    if isinstance(start, str):
        if start != "same":
            raise ValueError(f"start={start!r}: give 'independent', 'same', tensors by name, or an earlier result")
        start = own
    saved = model.state_dict().keys()
    if wrong := (saved & own.keys()) - start.keys() or start.keys() - (saved | own.keys()):
        raise ValueError(f"start and the model differ in {sorted(wrong)[0]!r}; the model has {', '.join(own)}")
    whole = {**own, **start}  # buffers that are not saved are the model's own
    return {n: per_replica(f"start[{n!r}]", whole[n].to(t.dtype), t, len(job.seeds)) for n, t in own.items()}


def masks_of(masks: Mapping[str, Tensor] | None, job: Job) -> TensorDict:
    """The masks with one row for each replica; True where a weight is alive."""
    if masks is None:
        return {}
    check_masks(masks)
    own = dict(first_model(job).named_parameters()) if masks else {}
    if unknown := masks.keys() - own.keys():
        raise ValueError(f"masks: no parameter {sorted(unknown)[0]!r}; the model has {', '.join(own)}")
    return {n: per_replica(f"masks[{n!r}]", mask, own[n], len(job.seeds)) for n, mask in masks.items()}


def per_replica(what: str, tensor: Tensor, like: Tensor, replicas: int) -> Tensor:
    """One row for each replica, from a tensor that has them, or from one shaped as in the model, the same for all."""
    if tensor.shape == like.shape:
        return tensor.detach().expand(replicas, *like.shape)
    if tensor.shape == (replicas, *like.shape):
        return tensor.detach()
    raise ValueError(
        f"{what} has shape {tuple(tensor.shape)}: must be {tuple(like.shape)}, or {(replicas, *like.shape)} for "
        f"{replicas} replicas"
    )
