"""Functions of torch that are computed in another way in a model that is one of many: dropout and small layers."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from prunewald.ensemble import layers
from prunewald.ensemble.draws import chain, counted, keep

_CALLS = 64  # the keys for this many dropouts are drawn in one go
# How many dimensions a batch has, (N, C, ...): torch takes any other input as one sample, (C, ...), but in dropout2d
# every input as a batch (None).
_BATCHED: dict[Callable[..., Any], int | None] = {F.dropout1d: 3, F.dropout2d: None, F.dropout3d: 5}
_FAST: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.conv2d: layers.conv2d,
    F.linear: layers.linear,
    F.max_pool2d: layers.max_pool2d,
}


class Swap(TorchFunctionMode):
    """While this is active, dropout draws its noise from a replica's `key` and `step`, or with noise=False has none.

    Key and step are tensors, or for a single model on a CPU numpy's arrays, which draw the same in less time. With
    `fast`, convolutions, dense layers and poolings are computed by `prunewald.ensemble.layers`.
    """

    def __init__(self, key: Any, step: Any, fast: bool, noise: bool = True) -> None:
        super().__init__()
        self.key, self.step, self.fast, self.noise = key, step, fast, noise
        self.calls = 0
        self.drawn: Any = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout or func in _BATCHED:
            return self._dropout(func, *args, **kwargs)
        if self.fast and func in _FAST:
            func = _FAST[func]
        return func(*args, **kwargs)

    def _dropout(
        self, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        func(input, p, training=False)  # changes nothing: torch's own errors and warnings about p and the shape
        if not (training and self.noise) or p == 0:
            return input
        scale = keep(self._next_key(), _drawn(func, input.shape), p).to(input.dtype) * (0.0 if p == 1 else 1 / (1 - p))
        return input.mul_(scale) if inplace else input * scale

    def _next_key(self) -> Any:
        block, at = divmod(self.calls, _CALLS)
        if at == 0:
            calls = counted(_CALLS, self.key) + block * _CALLS
            self.drawn = chain(chain(self.key, self.step), calls[:, None])
        self.calls += 1
        return self.drawn[at]


def _drawn(func: Any, shape: torch.Size) -> torch.Size:
    """The shape of the noise: one number for each element, or by dropout1d to 3d one for each channel."""
    if func is F.dropout:
        return shape
    lead = 2 if _BATCHED[func] in (None, len(shape)) else 1
    return torch.Size([*shape[:lead], *[1] * (len(shape) - lead)])
