"""Optimizers as recipes: settings that build torch's own optimizer for any parameters.

They work weight by weight, so that torch's optimizers are right for stacked replicas too.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Recipe(Protocol):
    """Settings of an optimizer. With a repr that shows all of them, a training with it can be saved in a folder."""

    def build(self, params: Iterable[Tensor], fast: bool = False) -> torch.optim.Optimizer:
        """The optimizer of these parameters; with `fast` one for many tensors on a GPU, inside a CUDA graph."""


@dataclass(frozen=True)
class SGD:
    """The settings of torch.optim.SGD."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def build(self, params: Iterable[Tensor], fast: bool = False) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters."""
        return torch.optim.SGD(params, **asdict(self), foreach=fast or None)


@dataclass(frozen=True)
class RMSprop:
    """The settings of torch.optim.RMSprop."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def build(self, params: Iterable[Tensor], fast: bool = False) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters."""
        return torch.optim.RMSprop(params, **asdict(self), foreach=fast or None, capturable=fast)


@dataclass(frozen=True)
class Adam:
    """The settings of torch.optim.Adam."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def build(self, params: Iterable[Tensor], fast: bool = False) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters."""
        return torch.optim.Adam(params, **_adam(self, fast))


@dataclass(frozen=True)
class AdamW:
    """The settings of torch.optim.AdamW."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False

    def build(self, params: Iterable[Tensor], fast: bool = False) -> torch.optim.Optimizer:
        """Torch's optimizer of these parameters."""
        return torch.optim.AdamW(params, **_adam(self, fast))


def _adam(recipe: Adam | AdamW, fast: bool) -> dict[str, Any]:
    return {**asdict(recipe), "fused": fast or None, "capturable": fast}
