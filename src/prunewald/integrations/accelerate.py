"""A Pruner that an Accelerator saves and loads with everything else.

pw.Pruner itself takes what Accelerate gives, before prepare() or after it; this adds the checkpoints and the checks.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunewald.integrations.framework import framework
from prunewald.pruner import Pruner

_SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


def attach(accelerator: Any, model: nn.Module, optimizer: Any = None, **choices: Any) -> Pruner:
    """A Pruner that is registered for checkpointing: `save_state` saves it, `load_state` goes on from it bit for bit.

    Model and optimizer are those that `prepare` takes or those it gives; `choices` are the Pruner's own. A load_state
    of a folder that was saved with other targets, or without this Pruner, is an error before anything is loaded. Where
    an earlier Pruner of these weights was detached, this one takes its place in the folders. A model that is sharded
    over processes, one that this Accelerator did not prepare while it has prepared others, and a second Pruner on the
    same weights are errors.
    """
    found = framework("accelerate")
    if not isinstance(accelerator, found.Accelerator):
        raise TypeError(f"attach({type(accelerator).__name__}, ...): give the accelerate.Accelerator first")
    _check(accelerator, model)
    pruner = Pruner(model, optimizer, **choices)
    _register(accelerator, pruner)
    accelerator.register_load_state_pre_hook(partial(_check_folder, accelerator, pruner))
    return pruner


def _check(accelerator: Any, model: nn.Module) -> None:
    """Refuse what could not be held or not be saved, before anything is attached."""
    if (kind := accelerator.distributed_type.value) in _SHARDED:
        raise ValueError(
            f"distributed_type={kind}: it shards weights over processes, which a Pruner does not support yet; prune in "
            "one process or under DDP (MULTI_GPU, MULTI_CPU), detach(), and shard then"
        )
    own = {id(param) for param in model.parameters()}
    if accelerator._models and not any(own & set(map(id, one.parameters())) for one in accelerator._models):
        raise ValueError(
            f"this {type(model).__name__} is none of the models that the Accelerator has prepared: save_state would "
            "save the masks without the weights; give the model of accelerator.prepare(model, ...)"
        )
    for known in accelerator._custom_objects:
        if isinstance(known, Pruner) and known.zeros.attached and own & _weights(known):
            raise ValueError(
                "a Pruner of this model is attached and registered already: go on with that one, or call detach() of "
                "it first, and the new one takes its place in checkpoints"
            )


def _register(accelerator: Any, pruner: Pruner) -> None:
    """Register a Pruner, in the place of one of the same weights that was detached: files are named by places."""
    own, known = _weights(pruner), accelerator._custom_objects
    for at, earlier in enumerate(known):
        if isinstance(earlier, Pruner) and not earlier.zeros.attached and own & _weights(earlier):
            known[at] = pruner
            return
    accelerator.register_for_checkpointing(pruner)


def _weights(pruner: Pruner) -> set[int]:
    return set(map(id, pruner.zeros.params.values()))


def _check_folder(accelerator: Any, pruner: Pruner, models: object, folder: str) -> None:
    """Refuse a folder that this Pruner cannot go on from, before anything of it is loaded."""
    at = next((i for i, one in enumerate(accelerator._custom_objects) if one is pruner), None)
    if at is None:
        return
    if not pruner.zeros.attached:
        raise ValueError(f"{folder} has the state of a Pruner that was detached since: attach() one in its place first")
    path = Path(folder) / f"custom_checkpoint_{at}.pkl"
    if not path.exists():
        raise ValueError(
            f"{folder} was saved without this Pruner: there is no {path.name}. To begin with its weights, load them "
            "with the Accelerator and attach() after that"
        )
    try:
        pruner.check_state(torch.load(path, map_location="cpu", weights_only=True))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
