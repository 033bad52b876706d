"""What a refit changes, as it was before: to go back to, wholly or in part."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Kept:
    """The values of some tensors of a model at one time, of masked ones only where they are alive."""

    def __init__(self, tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        self._tensors, self._masks = tensors, masks
        self._values: dict[str, Tensor] = {}

    def keep(self, name: str) -> None:
        """Keep a tensor as it is now, if none is kept yet."""
        if name not in self._values:
            tensor = self._tensors[name].detach()
            self._values[name] = tensor[self._masks[name]] if name in self._masks else tensor.clone()

    @property
    def names(self) -> list[str]:
        """Those that are kept."""
        return list(self._values)

    def now(self) -> "Kept":
        """The same tensors as they are now."""
        other = Kept(self._tensors, self._masks)
        for name in self._values:
            other.keep(name)
        return other

    @torch.no_grad()
    def put_(self, other: "Kept | None" = None, step: float = 0.0) -> None:
        """Put the values back, or so far (0 to 1) on the way from them to those of another time."""
        for name, values in self._values.items():
            towards = values if other is None else values.lerp(other._values[name], step)
            tensor = self._tensors[name].detach()
            if name in self._masks:
                tensor[self._masks[name]] = towards
            else:
                tensor.copy_(towards)
