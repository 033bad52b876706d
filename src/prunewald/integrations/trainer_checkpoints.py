"""The state of a Pruner in a checkpoint of Transformers' Trainer: where it is, and whether a model is as it says."""

import os
from collections.abc import Mapping
from inspect import currentframe
from typing import Any

import torch
from torch import Tensor

from prunewald.model.masking import check_masks
from prunewald.pruner import Pruner
from prunewald.pruning.resuming import check_saved, unpacked
from prunewald.util.files import read_torch
from prunewald.util.notices import warn
from prunewald.util.text import some

STATE = "pruner.pt"  # the file in a checkpoint
_LOOP = "_inner_training_loop"  # the method of the Trainer that knows which checkpoint it resumes from
_SHOWN = 3  # so many parameters are named in an error
_BEGIN = "begin with from_pretrained({!r}), and resume then"
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the size of a number in bytes


def file_of(process: int) -> str:
    """What a process writes: where gradients arrive is known to each for its own data only."""
    return f"pruner_{process}.pt" if process else STATE


def resumed_from(args: Any, state: Any) -> str | None:
    """The folder a training goes on from, None where it begins.

    The Trainer tells its callbacks the step it goes on from, but keeps the folder to itself: it is an argument of the
    call that led here.
    """
    if not state.global_step:
        return None
    frame = currentframe()
    while frame is not None:
        if frame.f_code.co_name == _LOOP and (folder := frame.f_locals.get("resume_from_checkpoint")):
            return str(folder)
        frame = frame.f_back
    return str(args.resume_from_checkpoint or os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))


def read(folder: str, process: int) -> dict[str, Any]:
    """The state of a Pruner in a checkpoint, by this process or else by the first one; empty where there is none."""
    for path in (os.path.join(folder, file_of(number)) for number in (process, 0)):
        if os.path.isfile(path):
            found = read_torch(
                path,
                "state of a Pruner",
                "take another checkpoint, or remove it and give PrunerCallback(hold_zeros=True)",
            )
            check_saved(found)
            return dict(found)
    return {}


def load_into(pruner: Pruner, saved: Mapping[str, Any], folder: str) -> None:
    """Go on from a saved state, which has to be of these targets and of the weights that the model has."""
    params = pruner.zeros.params
    try:
        masks = unpacked(saved["masks"])
        check_masks(masks, params, every=True, what="the saved masks")
        # What is frozen, as under adapters, need not be in the checkpoint: the masks make it what it was.
        trained = ((name, params[name].detach(), mask) for name, mask in masks.items() if params[name].requires_grad)
        if other := [name for name, weight, mask in trained if weight[~mask.to(weight.device)].any()]:
            raise ValueError(
                f"what it prunes is not zero in {some(map(repr, other), _SHOWN)}: the Trainer did not load these "
                f"weights, as it loads none that have other names in files; {_BEGIN.format(folder)}"
            )
        pruner.load_state_dict(saved)
    except ValueError as reason:
        raise ValueError(f"the Pruner of this PrunerCallback cannot go on from {folder!r}: {reason}") from reason


def sums(pruner: Pruner) -> dict[str, int]:
    """A number for the weights of each target, by which other weights are told: the sum of their bits as integers."""
    params = ((name, param.detach()) for name, param in pruner.zeros.params.items())
    return {name: int(w.view(_BITS[w.element_size()]).sum(dtype=torch.int64)) for name, w in params}


def warn_of_others(pruner: Pruner, saved: Mapping[str, Any], folder: str) -> None:
    """Say where the weights of a model are not those that a checkpoint was saved with."""
    now, then = sums(pruner), saved.get("sums", {})
    if names := [name for name in now if then.get(name, now[name]) != now[name]]:
        warn(
            f"the weights of {some(map(repr, names), _SHOWN)} are not those that {folder!r} was saved with: the "
            "Trainer loads none that have other names in files, as stacked experts and ViT do, and no base under "
            f"adapters; {_BEGIN.format(folder)}, with adapters on the base that they were trained on"
        )


def gone(pruner: Pruner, before: Mapping[str, Tensor]) -> list[str]:
    """The parameters of which earlier masks pruned what those of the Pruner keep, and nothing brought it back.

    The Trainer loads no weights that have other names in files, and a checkpoint of adapters has no frozen base.
    """
    news = ((name, alive & ~before[name].to(alive.device)) for name, alive in pruner.masks.items() if name in before)
    params = pruner.zeros.params
    return [name for name, new in news if new.any() and not torch.count_nonzero(params[name].detach()[new])]
