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
    of a folder that was saved with other targets, or without this Pruner, is an error before anything is loaded.
    A model that is sharded over processes, one that this Accelerator did not prepare while it has prepared others,
    and a second Pruner on the same weights are errors.
    """
    found = framework("accelerate")
    if not isinstance(accelerator, found.Accelerator):
        raise TypeError(f"attach({type(accelerator).__name__}, ...): give the accelerate.Accelerator first")
    _check(accelerator, model)
    pruner = Pruner(model, optimizer, **choices)
    accelerator.register_for_checkpointing(pruner)
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
        if isinstance(known, Pruner) and known.zeros.attached and own & set(map(id, known.zeros.params.values())):
            raise ValueError(
                "a Pruner of this model is attached and registered already: go on with that one, or call detach() of "
                "it first, and a checkpoint holds the states of both"
            )


def _check_folder(accelerator: Any, pruner: Pruner, models: object, folder: str) -> None:
    """Refuse a folder that this Pruner cannot go on from, before anything of it is loaded."""
    if not pruner.zeros.attached:
        return
    at = next(i for i, one in enumerate(accelerator._custom_objects) if one is pruner)
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
