"""How a Pruner that a callback makes begins: from a saved state, from masks, or not at all."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from prunewald.pruner import Pruner
from prunewald.util.text import some

_PRUNED = 0.01  # so large a share of zeros is no chance
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


def refuse_zeros(pruner: Pruner, path: object) -> None:
    """Refuse to train zeros that a pruning may have made."""
    weights = pruner.targets().values()
    zeros, total = sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)
    if zeros >= _PRUNED * total:
        raise ValueError(
            f"the checkpoint {str(path)!r} has {zeros:,} zeros in {total:,} weights, and no state of a PrunerCallback "
            "that holds them: PrunerCallback(hold_zeros=True) takes them for pruned and holds them, hold_zeros=False "
            "lets them train"
        )
