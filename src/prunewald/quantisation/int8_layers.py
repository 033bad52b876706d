"""Linear layers that compute with int8 codes, by the kernels for them that torch has on a CPU."""

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

    `way` is "int8", where each row of inputs is rounded to int8 by its own largest value and products are of whole
    numbers, or "bfloat16", where inputs are. Inputs that ask for a gradient, graphs that are traced and other dtypes
    meet the weight in float: right, and no faster.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, coded: Coded, bias: Tensor | None, way: str) -> None:
        super().__init__()
        self.out_features, self.in_features = coded.codes.shape
        self.way, self.origin = way, coded.origin
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
        y = WAYS[self.way](x.reshape(-1, self.in_features), self.codes, self.scales, self.bias)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """What is shown of it."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{shape}, {self.origin} codes, {self.way} inputs"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Int8Linear":
        moved = fn(torch.empty(1))
        if moved.device.type != "cpu" or moved.dtype != torch.float32:
            raise RuntimeError(_MOVED.format(moved.dtype, moved.device))
        return cast("Int8Linear", super()._apply(fn, recurse))  # type: ignore[no-untyped-call]


def _plain(x: Any) -> bool:
    """Whether the kernels can take an input: float32 on the CPU, no gradient asked for, no graph being made."""
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


def _whole(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    step = x.abs().amax(-1, keepdim=True).mul_(1 / 127).clamp_(min=1e-30)
    products = torch._int_mm((x / step).round_().to(torch.int8), codes.t())
    y = products.mul(scales).mul_(step)
    return y if bias is None else y.add_(bias)


def _halved(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    # The kernel's own scales are of bfloat16: ours are multiplied after it, and stay as they are.
    ones = torch.ones(len(codes), dtype=torch.bfloat16)
    y = torch._weight_int8pack_mm(x.to(torch.bfloat16), codes, ones).to(torch.float32)
    return y.mul_(scales) if bias is None else torch.addcmul(bias, y, scales)


# By name, for a table: what the inputs are rounded to.
WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]] = {"int8": _whole, "bfloat16": _halved}
