"""What a model returns: the tensor of its outputs in it, and its own loss, where it computes one.

`outputs(returned)` and `own_loss(returned)` take them from a tensor, a tuple, a dict or an object with attributes, as
Hugging Face's ModelOutput is; where that cannot be told, an error says what was returned.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Where outputs are in a dict or an object: Hugging Face's heads and bare models, torchvision's segmentation.
NAMES = ("logits", "out", "output", "outputs", "prediction_logits", "last_hidden_state")
_UNKNOWN = (
    "the model returned {}, in which its outputs cannot be told: give a loss that is a function of what the model "
    "returns and of the targets, as lambda returned, targets: ..."
)
_NO_LOSS = (
    "the model returned {}, and no loss of its own: give batches with 'labels' where it computes one from these, or "
    "give loss=, such as 'cross_entropy' or a function of what the model returns and of the targets"
)


def outputs(returned: Any) -> Tensor:
    """The tensor of outputs in what a model returned."""
    if isinstance(returned, Tensor):
        return returned
    for name in NAMES:
        if isinstance(found := entry(returned, name), Tensor):
            return found
    inside = [*returned.values()] if isinstance(returned, Mapping) else returned
    tensors = [one for one in inside if isinstance(one, Tensor)] if isinstance(inside, list | tuple) else []
    # The first of a tuple, as of recurrent layers, unless that is a loss before the outputs.
    first = next((t for t in tensors if t.dim()), None)
    if first is None or (isinstance(returned, Mapping) and len(tensors) > 1):
        raise ValueError(_UNKNOWN.format(described(returned)))
    return first


def own_loss(returned: Any) -> Tensor:
    """The loss that a model computed itself: its `loss`, or a single number that it returned, alone or first."""
    found = entry(returned, "loss")
    if found is None:
        found = returned[0] if isinstance(returned, list | tuple) and len(returned) else returned
        found = found if isinstance(found, Tensor) and found.dim() == 0 else None
    if not isinstance(found, Tensor):
        raise ValueError(_NO_LOSS.format(described(returned)))
    return found


def entry(returned: Any, name: str) -> Any:
    """An entry of a dict, or an attribute of an object; None where there is none."""
    return returned.get(name) if isinstance(returned, Mapping) else getattr(returned, name, None)


def described(returned: Any) -> str:
    """What a model returned, in words."""
    kind = type(returned).__name__
    if isinstance(returned, Tensor):
        return f"a tensor {tuple(returned.shape)}"
    if isinstance(returned, Mapping):
        return f"a {kind} with {', '.join(map(repr, returned)) or 'nothing'}"
    if isinstance(returned, list | tuple):
        return f"a {kind} of {', '.join(type(one).__name__ for one in returned) or 'nothing'}"
    return f"a {kind}"
