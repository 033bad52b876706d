"""What Lightning's ModelPruning leaves behind: masks in a live model, and in checkpoints."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import prune

from prunewald.export import from_torch_prune
from prunewald.pruning.noticing import ModelHook


class Reading:
    """While it lasts, a state dict of ModelPruning loads into the plain model, and its masks are kept here."""

    def __init__(self, model: nn.Module) -> None:
        self.masks: dict[str, Tensor] = {}  # by parameter name
        self._handle = model.register_load_state_dict_pre_hook(ModelHook(self._read))

    def _read(self, model: nn.Module, state: dict[str, Any], *_: object) -> None:
        params = dict(model.named_parameters(remove_duplicate=False))
        names = [name for name in params if f"{name}_orig" in state and f"{name}_mask" in state]
        paired = {key: state.pop(key) for name in names for key in (f"{name}_orig", f"{name}_mask")}
        weights, masks = from_torch_prune(paired)
        state.update(weights)
        self.masks |= masks

    def end(self) -> None:
        """Read no more."""
        self._handle.remove()


def from_model_pruning(model: nn.Module) -> dict[str, Tensor]:
    """The masks of a model that Lightning's ModelPruning has pruned; the model is a plain one from then on.

    They are by parameter name, for `PrunerCallback(masks=...)` or `pruner.set_masks`. Checkpoints of ModelPruning need
    no such call: `trainer.fit(model, ckpt_path=...)` with a PrunerCallback reads them.
    """
    found = [
        (f"{place}.{hook._tensor_name}".lstrip("."), module, hook._tensor_name)
        for place, module in model.named_modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, prune.BasePruningMethod)
    ]
    if not found:
        raise ValueError(
            f"{type(model).__name__} is a plain model, which ModelPruning has not pruned, or made permanent: "
            "PrunerCallback(hold_zeros=True) holds the zeros that its weights have"
        )
    masks = {name: getattr(module, f"{leaf}_mask") != 0 for name, module, leaf in found}
    for _, module, leaf in found:
        prune.remove(module, leaf)
    return masks
