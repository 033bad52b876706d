"""BatchNorm measured anew on what the refitted layers before it give, where that brings it closer to the dense one."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from prunewald.distributed import summed


class Moments:
    """Sums over the examples, channel by channel, of what comes into a BatchNorm, x, and what should come out, y."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # (6, channels): n, x, x², y, y², xy

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take in one call."""
        x, y = (one.transpose(0, 1).flatten(1).double() for one in (x, y))
        n = torch.full((len(x),), x.shape[1], dtype=torch.float64, device=x.device)
        sums = torch.stack([n, x.sum(1), x.square().sum(1), y.sum(1), y.square().sum(1), (x * y).sum(1)])
        self.sums = sums if self.sums is None else self.sums.add_(sums)

    def reduced(self) -> Tensor:
        """The sums over all processes that train together."""
        assert self.sums is not None
        return summed(self.sums)


@dataclass(frozen=True)
class Statistics:
    """Means and variances of the channels, and the errors with them and with those before."""

    mean: Tensor
    var: Tensor
    before: float
    after: float


def measured(norm: _BatchNorm, fitted: Tensor, held: Tensor) -> Statistics:
    """The statistics of the examples fitted to, and what they and the present ones do on the examples held back."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    n, x, squares = fitted[:3]
    mean = x / n
    var = (squares / n - mean.square()).clamp(min=0) * n / (n - 1).clamp(min=1)
    mean, var = mean.to(norm.running_mean), var.to(norm.running_var)
    total = float(held[4].sum()) or 1.0
    before = _error(norm, held, norm.running_mean, norm.running_var)
    return Statistics(mean, var, before / total, _error(norm, held, mean, var) / total)


def _error(norm: _BatchNorm, held: Tensor, mean: Tensor, var: Tensor) -> float:
    """Σ (a x + c - y)² over channels and examples, with the a and c that these statistics give."""
    a = (var.double() + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight.double())
    c = (0.0 if norm.bias is None else norm.bias.double()) - a * mean.double()
    n, x, xx, y, yy, xy = held
    return float((a * a * xx + n * c * c + yy + 2 * a * c * x - 2 * a * xy - 2 * c * y).clamp(min=0).sum())
