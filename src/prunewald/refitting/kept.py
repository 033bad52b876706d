"""What a refit changes, as it was before: to go back to, wholly or in part."""

from collections.abc import Mapping

import torch
from torch import Tensor

from prunewald.refitting.originals import Originals


class Kept:
    """The values of some tensors of a model at one time, of masked ones only where they are alive.

    Those that the dense model has too, as right after a pruning, are not kept twice.
    """

    def __init__(self, tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor], dense: Originals) -> None:
        self._tensors, self._masks, self._dense = tensors, masks, dense
        self._values: dict[str, Tensor | None] = {}  # None: those of the dense model

    def keep(self, name: str) -> None:
        """Keep a tensor as it is now, if none is kept yet."""
        if name not in self._values:
            now = self._alive(name, self._tensors[name].detach())
            self._values[name] = None if torch.equal(now, self._original(name)) else now.clone()

    def now(self) -> dict[str, Tensor]:
        """The same tensors as they are now."""
        return {name: self._alive(name, self._tensors[name].detach()).clone() for name in self._values}

    @torch.no_grad()
    def put_(self, other: Mapping[str, Tensor] | None = None, step: float = 0.0) -> None:
        """Put the values back, or so far (0 to 1) on the way from them to those of another time."""
        for name, kept in self._values.items():
            values = self._original(name) if kept is None else kept
            towards = values if other is None else values.lerp(other[name], step)
            tensor = self._tensors[name].detach()
            if name in self._masks:
                tensor[self._masks[name]] = towards
            else:
                tensor.copy_(towards)

    def _alive(self, name: str, tensor: Tensor) -> Tensor:
        return tensor[self._masks[name]] if name in self._masks else tensor

    def _original(self, name: str) -> Tensor:
        return self._alive(name, self._dense.read({name: self._tensors[name]})[name])
