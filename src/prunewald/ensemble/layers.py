"""Convolution and pooling of one replica, which under vmap are computed for all replicas by one kernel."""

from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

_TAPS, _CHANNELS = 1024, 16  # in larger layers the kernels of torch's libraries keep a GPU busy


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
    plain = _pair(stride) == _pair(dilation) == (1, 1) and groups == 1 and not isinstance(padding, str)
    small = channels * high * wide <= _TAPS and max(out, channels) <= _CHANNELS
    if plain and small and _fits(input) and weight.dtype == torch.float32:
        down, right = _pair(padding)
        if down < high and right < wide:
            result: Tensor = _Conv.apply(input, weight, bias, (down, right))  # type: ignore[no-untyped-call]
            return result
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
        tensors = [_first(tensor, dim, info.batch_size) for tensor, dim in zip((x, weight, bias), dims, strict=False)]
        return _Convs.apply(*tensors, padding), 0  # type: ignore[no-untyped-call]


class _Convs(Function):
    """The convolutions of all replicas, each with weights of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        x = _padded(x, padding)
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
        return _Pool.apply(_first(x, dims[0], info.batch_size), size), (0, 0)  # type: ignore[no-untyped-call]


def _padded(x: Tensor, padding: tuple[int, int]) -> Tensor:
    return F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x


def _first(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The tensor with the replicas as its first dimension."""
    if tensor is None:
        return None
    return (tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)).contiguous()
