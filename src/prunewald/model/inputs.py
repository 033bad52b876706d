"""The inputs of linear and convolutional layers: what each weight multiplies in a forward pass."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from prunewald.util.tensors import accumulator

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # those whose inputs can be read


_positions: ContextVar[Tensor | None] = ContextVar("positions", default=None)


@contextmanager
def only_positions(positions: Tensor | None) -> Iterator[None]:
    """Inside a with block the inputs of linear layers count at these positions (B, T) of sequences alone."""
    token = _positions.set(positions)
    try:
        yield
    finally:
        _positions.reset(token)


def squares_met(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Σ x² over the inputs x that each entry of a row of the weight multiplies in one call of the layer.

    All rows of a group meet the same inputs, so there is one row for each group: (groups, *weight.shape[1:]).
    """
    x = args[0] if args else kwargs["input"]
    return _linear_squares(x) if isinstance(module, nn.Linear) else _convolution_squares(module, x)


def _squares(x: Tensor, dims: int) -> Tensor:
    """x² summed over all dimensions but the last `dims`."""
    x = x.unsqueeze(0)  # so that there is one to sum over
    return x.to(accumulator(x)).square().sum(tuple(range(x.dim() - dims)))


def _linear_squares(x: Tensor) -> Tensor:
    """Σ x² of each feature, as one row."""
    positions = _positions.get()
    if positions is not None:
        if x.shape[:-1] == positions.shape:
            x = x[positions.to(x.device)]
        elif x.shape[:-1] == (positions.numel(),):  # laid end to end
            x = x[positions.to(x.device).flatten()]
    return _squares(x, 1).unsqueeze(0)


def _convolution_squares(module: Any, x: Tensor) -> Tensor:
    """Σ x² over the positions that each place of the kernel meets, as one row for each group."""
    sums = _squares(x, 1 + len(module.kernel_size))
    sums = F.pad(sums, _padding(module), mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    for size, stride, dilation in zip(module.kernel_size, module.stride, module.dilation, strict=True):
        # The first dimension of space is replaced by one of the kernel, at the end.
        sums = sums.unfold(1, dilation * (size - 1) + 1, stride)[..., ::dilation].sum(1)
    by_group: Tensor = sums.unflatten(0, (module.groups, -1))
    return by_group


def _padding(module: Any) -> Sequence[int]:
    """The padding of a convolution as F.pad wants it: the last dimension first."""
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        padding: list[int] = module._reversed_padding_repeated_twice
        return padding
    return [side for size in reversed(module.padding) for side in (size, size)]
