"""Layers of one replica, which under vmap are computed for all replicas by one kernel or one product."""

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

_TAPS, _CHANNELS = 1024, 16  # in larger layers the kernels of torch's libraries keep a GPU busy
_LARGE = 1 << 16  # weights of a dense layer, from which on rearranging its gradient takes time


@cache
def kernels() -> ModuleType | None:
    """The Triton kernels; None where Triton is not installed or does not work."""
    try:
        from prunewald.ensemble import kernels as found

        found.pool(torch.zeros(1, 2, 2, device="cuda"), (2, 2))
    except Exception:  # no Triton, no compiler, a GPU it does not know
        return None
    return found


def _triton() -> ModuleType:
    found = kernels()
    assert found is not None  # `_fits` has asked
    return found


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear, whose gradients come as the weights lie in memory, so that nothing has to be rearranged."""
    if bias is None or input.dim() < 2 or weight.numel() < _LARGE:
        return F.linear(input, weight, bias)
    return _dense(input, weight, bias)


def _dense(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = _Linear.apply(input.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
    shaped: Tensor = result.unflatten(0, input.shape[:-1])
    return shaped


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """torch.conv2d, which takes our own kernel for a small layer on a GPU."""
    out, channels, high, wide = weight.shape
    simple = _pair(dilation) == (1, 1) and groups == 1 and not isinstance(padding, str)
    small = channels * high * wide <= _TAPS and max(out, channels) <= _CHANNELS
    if simple and small and _pair(stride) == (1, 1) and _fits(input) and weight.dtype == torch.float32:
        down, right = _pair(padding)
        if down < high and right < wide:
            result: Tensor = _Conv.apply(input, weight, bias, (down, right))  # type: ignore[no-untyped-call]
            return result
    beside = simple and _pair(stride) == (high, wide) and _pair(padding) == (0, 0) and input.dim() == 4
    if beside and bias is not None and input.shape[2] % high == input.shape[3] % wide == 0:
        # A vision transformer's patches: a dense layer of each.
        cut = input.unflatten(2, (-1, high)).unflatten(4, (-1, wide)).permute(0, 2, 4, 1, 3, 5)
        return _dense(cut.flatten(3), weight.flatten(1), bias).permute(0, 3, 1, 2)
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """F.max_pool2d, which takes our own kernel for windows that lie side by side, on a GPU."""
    size = _pair(kernel_size)
    beside = stride is None or stride == [] or _pair(stride) == size
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode and not return_indices
    if beside and plain and _fits(input) and size[0] * size[1] < 256:
        return _Pool.apply(input, size)[0]  # type: ignore[no-untyped-call]
    pool: Any = F.max_pool2d
    return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _fits(input: Tensor) -> bool:
    return input.dim() == 4 and input.is_cuda and input.dtype == torch.float32 and kernels() is not None


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]


class _Linear(Function):
    """The layer of one replica, which vmap replaces by that of all of them, `_Linears`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, *given: Tensor) -> tuple[Tensor, int]:
        return _Linears.apply(*_all_first(given, dims, info.batch_size)), 0  # type: ignore[no-untyped-call]


class _Linears(Function):
    """The layers of all replicas, each with weights of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = grad @ weight if ctx.needs_input_grad[0] else None
        return dx, grad.mT @ x, grad.sum(1)


class _Conv(Function):
    """The convolution of one replica, which vmap replaces by that of all of them, `_Convs`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        y: Tensor = _triton().conv(_padded(x[None], padding), weight[None], None if bias is None else bias[None])[0]
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> tuple[Tensor, int]:
        tensors = _all_first((x, weight, bias), dims, info.batch_size)
        return _Convs.apply(*tensors, padding), 0  # type: ignore[no-untyped-call]


class _Convs(Function):
    """The convolutions of all replicas, each with weights of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        x, weight = _padded(x, padding).contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        y: Tensor = _triton().conv(x, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dx = _triton().conv_input(grad, weight, ctx.padding) if ctx.needs_input_grad[0] else None
        dw, db = _triton().conv_weight(x, grad, weight.shape)
        return dx, dw, db if ctx.needs_input_grad[2] else None, None


class _Pool(Function):
    """Max pooling, of one replica or of all."""

    @staticmethod
    def forward(x: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        y, which = _triton().pool(x.contiguous(), size)
        return y, which

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.shape, ctx.size = inputs[0].shape, inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        return _triton().unpool(grad.contiguous(), *ctx.saved_tensors, ctx.shape, ctx.size), None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, size: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        # Pooling has no weights, so that replicas are only one more leading dimension.
        return _Pool.apply(*_all_first([x], dims, info.batch_size), size), (0, 0)  # type: ignore[no-untyped-call]


def _padded(x: Tensor, padding: tuple[int, int]) -> Tensor:
    return F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x


def _all_first(tensors: Sequence[Tensor | None], dims: Any, size: int) -> list[Tensor | None]:
    """The tensors with the replicas as their first dimension."""
    return [_first(tensor, dim, size) for tensor, dim in zip(tensors, dims, strict=False)]


def _first(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
