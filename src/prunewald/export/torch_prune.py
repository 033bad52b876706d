"""The form that torch.nn.utils.prune has, both ways."""

from collections.abc import Mapping

from torch import Tensor, nn

from prunewald.model.masking import check_masks
from prunewald.model.modules import plain


def to_torch_prune(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict as torch.nn.utils.prune has it: a `_orig` and a `_mask` for each masked parameter.

    It loads into a model on which `torch.nn.utils.prune.identity` was called for these parameters.
    """
    state: dict[str, Tensor] = dict(plain(model).state_dict())
    check_masks(masks, state)
    for name, mask in masks.items():
        weight = state.pop(name)
        state |= {f"{name}_orig": weight, f"{name}_mask": mask.to(weight)}
    return state


def from_torch_prune(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A plain state dict, and the masks, from one of a model that torch.nn.utils.prune has pruned."""
    masked = [name.removesuffix("_orig") for name in state if name.endswith("_orig")]
    masks = {}
    paired = {f"{name}{end}" for name in masked for end in ("_orig", "_mask")}
    weights = {name: t for name, t in state.items() if name not in paired}
    for name in masked:
        if f"{name}_mask" not in state:
            raise ValueError(
                f"{name + '_orig'!r} has no {name + '_mask'!r} beside it: not a state dict of a pruned model"
            )
        mask, weight = state[f"{name}_mask"], state[f"{name}_orig"]
        masks[name] = mask != 0
        weights[name] = (weight * mask.to(weight.dtype)).masked_fill(~masks[name], 0.0)  # also where it was NaN
    return weights, masks
