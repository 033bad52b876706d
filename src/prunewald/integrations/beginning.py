"""How a Pruner that a callback makes begins: from a saved state, from masks, or not at all."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from prunewald.pruner import Pruner
from prunewald.util.notices import warn
from prunewald.util.text import some

_MUCH = 0.01  # a tensor with fewer zeros was hardly pruned: in bfloat16 some weights are zero by chance
_HOLD = "PrunerCallback(hold_zeros=True) holds them, hold_zeros=False lets them train"
_SHOWN = 6  # so many names are said


def shares(pruner: Pruner, model: nn.Module) -> bool:
    """Whether a model has any of the parameters of the one that is pruned."""
    own = set(map(id, pruner.model.parameters()))
    return not own.isdisjoint(map(id, model.parameters()))


def load(pruner: Pruner, state: Mapping[str, Any]) -> None:
    """Go on from a state that a checkpoint of a callback has; of other targets it is an error."""
    try:
        pruner.load_state_dict(state["pruner"])
    except ValueError as error:
        raise ValueError(
            f"the checkpoint is of a PrunerCallback with other targets or choices: {error}. Give it the same module=, "
            "targets=, ignore=, criterion= and uncertainty=, or fit without ckpt_path"
        ) from error


def take(pruner: Pruner, masks: Mapping[str, Tensor]) -> None:
    """Take masks from elsewhere; parameters without one are pruned nowhere, and what prunes must be a target."""
    own = pruner.masks
    beside = [name for name, mask in masks.items() if name not in own and not mask.all()]
    if beside:
        names = [*own, *beside]
        raise ValueError(
            f"there are masks that prune {some(beside, _SHOWN)}, which are no targets, so nothing would hold their "
            f"zeros: PrunerCallback(targets={names!r}) does"
        )
    pruner.set_masks(own | {name: mask for name, mask in masks.items() if name in own})


def meet_zeros(pruner: Pruner, hold: bool | None, resumed: object, lacks: str, *, soon: bool) -> None:
    """What becomes of zeros that a model has which nobody says are pruned: held, trained, refused or warned of.

    They are refused where a training is resumed from a checkpoint, which lacks something that says what was pruned. A
    pruning that comes `soon`, before the first step, takes zeros first.
    """
    if hold:
        pruner.hold_zeros()
        return
    found = 0 if hold is False else _zeros(pruner)
    if found and resumed is not None:
        raise ValueError(
            f"{found:,} of the weights to prune are zero in the model that is resumed from {str(resumed)!r}, which has "
            f"no {lacks} that says which were pruned: {_HOLD}"
        )
    if found and not soon:
        warn(f"{found:,} of the weights to prune are zero, and nothing holds them: {_HOLD}")


def _zeros(pruner: Pruner) -> int:
    """How many weights look as if they were pruned: zeros, where there are many, in tensors that have others too."""
    counts = [(int((weight == 0).sum()), weight.numel()) for weight in pruner.targets().values()]
    return sum(zeros for zeros, size in counts if _MUCH * size <= zeros < size)
