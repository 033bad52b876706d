"""The state of a training: kept in memory to go back to."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.model.optimizers import as_list
from prunewald.pruner import Pruner
from prunewald.pruning.checks import copied


class Checkpoint:
    """A model and its optimizer as they are now, to rewind to after a pruning (Renda et al., 2020).

    Take it early in training, and give `iterative` one of its methods: `rewind=checkpoint.weights_` sets weights,
    moments and learning rate back, `rewind=checkpoint.lr_` the learning rate alone. `copies` of the model, such as an
    AveragedModel that the Pruner follows, go back with its weights.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | list[Optimizer], *copies: nn.Module) -> None:
        self._models = [getattr(one, "_orig_mod", one) for one in (model, *copies)]
        self._optimizers = as_list(optimizer)
        self._weights = [copied(one.state_dict()) for one in self._models]
        self._states = [copied(o.state_dict()) for o in self._optimizers]

    def weights_(self) -> None:
        """Set the weights and the optimizer back."""
        for model, weights in zip(self._models, self._weights, strict=True):
            model.load_state_dict(weights)
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            optimizer.load_state_dict(copied(state))

    def lr_(self) -> None:
        """Set the learning rate back, and whatever else a scheduler may have changed; the weights stay."""
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
                for key in group.keys() - saved.keys():
                    del group[key]  # a scheduler's initial_lr, from which the next one would start
                for key in saved.keys() - {"params"}:
                    set_(group, key, saved[key])


def check_rewind(rewind: object, pruner: Pruner) -> None:
    """A Checkpoint whose weights go back must take along every copy that the Pruner follows."""
    checkpoint = getattr(rewind, "__self__", None)
    if not isinstance(checkpoint, Checkpoint) or rewind == checkpoint.lr_:
        return
    for copy in pruner.copies:
        if not any(copy is own for own in checkpoint._models):
            raise ValueError(
                f"the Pruner follows a copy of the model, {type(copy).__name__}, which checkpoint.weights_ would "
                "leave as it is: take Checkpoint(model, optimizer, copy) while the copy is at that point too"
            )


def set_(group: dict[str, Any], key: str, value: Any) -> None:
    """Change a setting of a parameter group; a tensor is what a captured or compiled step reads, and stays that one."""
    if isinstance(group.get(key), Tensor):
        group[key].copy_(torch.as_tensor(value))
    else:
        group[key] = copied(value)
