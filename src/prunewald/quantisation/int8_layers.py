"""Linear layers that compute with int8 codes, by the kernel for them that torch has on a CPU."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunewald.quantisation.int8_codes import Coded

_MOVED = (
    "this model was made by run_int8() to take float32 on a CPU, and cannot become {} on {}: do that with the float "
    "model, and call run_int8() again"
)


class Int8Linear(nn.Module):
    """A linear layer for inference whose weight is int8, a scale for each row beside it.

    Each row of inputs is rounded to int8 by its own largest value, and products are of whole numbers. Inputs that ask
    for a gradient, graphs that are traced and other dtypes meet the weight in float: right, and no faster.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, coded: Coded, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = coded.codes.shape
        self.origin = coded.origin
        self.register_buffer("codes", coded.codes.clone())
        self.register_buffer("scales", coded.by_row.clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @property
    def weight(self) -> Tensor:
        """The weight that codes and scales stand for, made anew; what is written to it is lost."""
        return self.codes * self.scales[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """W x + b."""
        if not _plain(x) or x.shape[-1] != self.in_features:
            weight, bias = self.weight, self.bias
            return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
        y = _product(x.reshape(-1, self.in_features), self.codes, self.scales, self.bias)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """What is shown of it."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{shape}, {self.origin} codes"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Int8Linear":
        moved = fn(torch.empty(1))
        if moved.device.type != "cpu" or moved.dtype != torch.float32:
            raise RuntimeError(_MOVED.format(moved.dtype, moved.device))
        return cast("Int8Linear", super()._apply(fn, recurse))  # type: ignore[no-untyped-call]


def _plain(x: Any) -> bool:
    """Whether the kernel can take an input: float32 on the CPU, no gradient asked for, no graph being made."""
    return (
        type(x) is Tensor
        and x.dtype is torch.float32
        and x.is_cpu
        and x.dim() > 0
        and x.numel() > 0
        and not (x.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
    )


def _product(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    step = x.abs().amax(-1, keepdim=True).mul_(1 / 127).clamp_(min=1e-30)
    products = torch._int_mm((x / step).round_().to(torch.int8), codes.t())
    y = products.mul(scales).mul_(step)
    return y if bias is None else y.add_(bias)
