"""What is computed otherwise when a model is one of many: dropout noise, and small convolutions and poolings."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from prunewald.ensemble import layers
from prunewald.ensemble.draws import chain, keep

_CALLS = 64  # keys for that many dropouts are drawn in one go
# How many trailing dimensions one draw covers; None: each element has its own.
_DROPOUT: dict[Callable[..., Any], int | None] = {F.dropout: None, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}
_FAST: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.conv2d: layers.conv2d,
    F.max_pool2d: layers.max_pool2d,
}


class Swap(TorchFunctionMode):
    """While active, dropout takes its noise from `key`; `fast`: small layers have kernels of their own."""

    def __init__(self, key: Tensor, step: Tensor, fast: bool) -> None:
        super().__init__()
        self.key, self.step, self.fast = key, step, fast
        self.calls = 0
        self.drawn: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            return self._dropout(_DROPOUT[func], *args, **kwargs)
        if self.fast and func in _FAST:
            func = _FAST[func]
        return func(*args, **kwargs)

    def _dropout(
        self, spatial: int | None, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        shape = input.shape
        if spatial is not None:
            shape = torch.Size([*shape[:-spatial], *[1] * spatial])
        scale = keep(self._next_key(), shape, p).to(input.dtype) * (0.0 if p == 1 else 1 / (1 - p))
        return input.mul_(scale) if inplace else input * scale

    def _next_key(self) -> Tensor:
        block, at = divmod(self.calls, _CALLS)
        if at == 0:
            calls = torch.arange(_CALLS, dtype=torch.int32, device=self.key.device) + block * _CALLS
            self.drawn = list(chain(chain(self.key, self.step), calls[:, None]).unbind(0))
        self.calls += 1
        return self.drawn[at]
