"""A point in a training to rewind to after each pruning."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.model.modules import plain
from prunewald.model.optimizers import as_given, own_state, set_own_state_
from prunewald.pruner import Pruner
from prunewald.util.trees import copied


@dataclass(frozen=True, repr=False)
class Rewind:
    """A way back to a Checkpoint: call it to go there, or give it to `iterative` as `rewind`.

    `models` are those whose weights it sets back; there are none where the weights stay.
    """

    name: str
    back_: Callable[[], None]
    models: tuple[nn.Module, ...] = ()

    def __call__(self) -> None:
        """Go back."""
        self.back_()

    def __repr__(self) -> str:
        return self.name

    def check(self, pruner: Pruner) -> None:
        """Refuse to set the model's weights back, and to leave a copy that the Pruner follows where it is."""
        left = [copy for copy in pruner.copies if not any(copy is model for model in self.models)]
        if self.models and left:
            raise ValueError(
                f"the Pruner follows a copy of the model, {type(left[0]).__name__}, which rewind={self.name} would "
                "leave as it is: take Checkpoint(model, optimizer, copy) while the copy is at that point too"
            )


class Checkpoint:
    """A model and its optimizer as they are now, to rewind to after a pruning (Renda et al., 2020).

    Take it early in training, and give `iterative` one of its two ways back: `rewind=checkpoint.weights_` sets weights,
    moments and learning rate back, `rewind=checkpoint.lr_` the learning rate alone. Either can be called on its own:
    `checkpoint.weights_()`. `copies` of the model, such as an AveragedModel that the Pruner follows, go back with its
    weights.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | list[Optimizer], *copies: nn.Module) -> None:
        self._models = tuple(plain(one) for one in (model, *copies))
        _, self._optimizers, kept, _ = as_given(optimizer)
        self._weights = [copied(one.state_dict()) for one in self._models]
        self._states = [copied(o.state_dict()) for o in self._optimizers]
        self._wrappers = [(one, own_state(one)) for one in kept if one not in self._optimizers]

    @property
    def weights_(self) -> Rewind:
        """The way back to the weights and to the optimizer's whole state."""
        return Rewind("checkpoint.weights_", self._set_weights_, self._models)

    @property
    def lr_(self) -> Rewind:
        """The way back to the learning rate, and whatever else a scheduler may have changed; the weights stay."""
        return Rewind("checkpoint.lr_", self._set_lr_)

    def _set_weights_(self) -> None:
        for model, weights in zip(self._models, self._weights, strict=True):
            model.load_state_dict(weights)
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            optimizer.load_state_dict(copied(state))
        for wrapper, states in self._wrappers:
            set_own_state_(wrapper, states)

    def _set_lr_(self) -> None:
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
                for key in group.keys() - saved.keys():
                    del group[key]  # a scheduler's initial_lr, from which the next one would start
                for key in saved.keys() - {"params"}:
                    set_option_(group, key, saved[key])


def set_option_(group: dict[str, Any], key: str, value: Any) -> None:
    """Change an option of a parameter group.

    A tensor is changed in place: a captured or compiled step goes on reading that very tensor.
    """
    if isinstance(group.get(key), Tensor):
        group[key].copy_(torch.as_tensor(value, device=group[key].device))
    else:
        group[key] = copied(value)
