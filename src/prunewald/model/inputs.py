"""The inputs of linear and convolutional layers: what each weight multiplies in a forward pass."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from prunewald.util.tensors import accumulator

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # those whose inputs can be read


_positions: ContextVar[Tensor | None] = ContextVar("positions", default=None)
_unread: ContextVar[bool] = ContextVar("unread", default=False)


@contextmanager
def only_positions(positions: Tensor | None) -> Iterator[None]:
    """Inside a with block the inputs of linear layers count at these positions (B, T) of sequences alone."""
    token = _positions.set(positions)
    try:
        yield
    finally:
        _positions.reset(token)


@contextmanager
def unread() -> Iterator[None]:
    """Inside a with block forward passes tell no statistic of their inputs: they are not the model's own."""
    token = _unread.set(True)
    try:
        yield
    finally:
        _unread.reset(token)


def is_read() -> bool:
    """Whether a statistic may read the inputs of the forward pass that runs now."""
    return not _unread.get()


def squares_met(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Σ x² over the inputs x that each entry of a row of the weight multiplies in one call of the layer.

    All rows of a group meet the same inputs, so there is one row for each group: (groups, *weight.shape[1:]).
    """
    x = args[0] if args else kwargs["input"]
    return _linear_squares(x) if isinstance(module, nn.Linear) else _convolution_squares(module, x)


def rows_met(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The inputs that each row of the weight multiplies in one call of the layer: (groups, n, d).

    There are n rows, an example or a position of the output each, in the order of the output; the d entries are in the
    order of `weight[r].reshape(-1)`, for a transposed convolution that of `Layout.swap(weight)[r].reshape(-1)`, so that
    `rows_met(...)[g] @ weight[r].reshape(-1)` is what row r of group g gives, but for the bias. For linear layers and
    convolutions of every kind. Positions of convolutions overlap: n times d may be many times the size of the input.
    """
    x = args[0] if args else kwargs["input"]
    if isinstance(module, _ConvTransposeNd):
        x = _spread(module, x, args[1] if len(args) > 1 else kwargs.get("output_size"))
        return _unfolded(module, x, (1,) * len(module.kernel_size), turned=True)
    if isinstance(module, _ConvNd):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        return _unfolded(module, F.pad(x, padding(module), mode=mode), module.stride)
    rows: Tensor = _counted(x).reshape(1, -1, x.shape[-1])
    return rows


def _spread(module: Any, x: Tensor, output_size: list[int] | None) -> Tensor:
    """The input of a transposed convolution as the input of the plain one of stride 1 that gives the same."""
    dims = len(module.kernel_size)
    more = module._output_padding(
        x, output_size, module.stride, module.padding, module.kernel_size, dims, module.dilation
    )
    spread = x.new_zeros(
        *x.shape[:-dims], *((s - 1) * step + 1 for s, step in zip(x.shape[-dims:], module.stride, strict=True))
    )
    steps: Any = (..., *(slice(None, None, step) for step in module.stride))
    spread[steps] = x
    sides: list[int] = []  # the last dimension first; below zero where the input is cut
    for size, dilation, padding, end in zip(module.kernel_size, module.dilation, module.padding, more, strict=True):
        start = dilation * (size - 1) - padding
        sides = [start, start + end, *sides]
    return F.pad(spread, sides)


def _unfolded(module: Any, x: Tensor, strides: Sequence[int], *, turned: bool = False) -> Tensor:
    """What the kernel meets at each of its positions, as rows by group; `turned` where it is taken from its end."""
    dims = len(module.kernel_size)
    x = x if x.dim() == dims + 2 else x.unsqueeze(0)
    for at, (size, stride, dilation) in enumerate(zip(module.kernel_size, strides, module.dilation, strict=True)):
        x = x.unfold(2 + at, dilation * (size - 1) + 1, stride)[
            ..., ::dilation
        ]  # a dimension of the kernel, at the end
    x = x.flip(tuple(range(-dims, 0))) if turned else x
    by_group = x.unflatten(1, (module.groups, -1)).movedim((1, 2), (0, dims + 2))  # groups, n, positions, d
    rows: Tensor = by_group.flatten(dims + 2).flatten(1, dims + 1)
    return rows


def _squares(x: Tensor, dims: int) -> Tensor:
    """x² summed over all dimensions but the last `dims`."""
    x = x.unsqueeze(0)  # so that there is one to sum over
    return x.to(accumulator(x)).square().sum(tuple(range(x.dim() - dims)))


def _linear_squares(x: Tensor) -> Tensor:
    """Σ x² of each feature, as one row."""
    return _squares(_counted(x), 1).unsqueeze(0)


def _counted(x: Tensor) -> Tensor:
    """The inputs of a linear layer at the positions that count."""
    positions = _positions.get()
    if positions is not None and x.shape[:-1] == positions.shape:
        return x[positions.to(x.device)]
    if positions is not None and x.shape[:-1] == (positions.numel(),):  # laid end to end
        return x[positions.to(x.device).flatten()]
    return x


def _convolution_squares(module: Any, x: Tensor) -> Tensor:
    """Σ x² over the positions that each place of the kernel meets, as one row for each group."""
    sums = _squares(x, 1 + len(module.kernel_size))
    sums = F.pad(sums, padding(module), mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    for size, stride, dilation in zip(module.kernel_size, module.stride, module.dilation, strict=True):
        # The first dimension of space is replaced by one of the kernel, at the end.
        sums = sums.unfold(1, dilation * (size - 1) + 1, stride)[..., ::dilation].sum(1)
    by_group: Tensor = sums.unflatten(0, (module.groups, -1))
    return by_group


def padding(module: Any) -> Sequence[int]:
    """The padding of a convolution as F.pad wants it: the last dimension first."""
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        sides: list[int] = module._reversed_padding_repeated_twice
        return sides
    return [side for size in reversed(module.padding) for side in (size, size)]
