"""How far two uncertainties of the same weights say the same: in their order, and in their size."""

from typing import NamedTuple

import torch
from torch import Tensor


class Agreement(NamedTuple):
    """How two uncertainties of the same weights compare.

    `correlation` is Spearman's, of their ranks: 1 where both put the weights in the same order. `quantiles` are the
    10 %, 50 % and 90 % quantiles of the ratio of the first to the second: all near 1 where they have the same size.
    """

    correlation: float
    quantiles: tuple[float, float, float]


def agreement(a: Tensor, b: Tensor) -> Agreement:
    """Compare two sigmas where both are finite and above zero.

    >>> import torch
    >>> agreement(torch.tensor([0.2, 0.4, 0.6]), torch.tensor([0.1, 0.2, 0.3])).quantiles
    (2.0, 2.0, 2.0)
    """
    both = a.isfinite() & b.isfinite() & (a > 0) & (b > 0)
    if int(both.sum()) < 2:
        raise ValueError(
            f"only {int(both.sum())} of {both.numel()} weights have both sigmas, finite and above 0, and a comparison "
            "needs two: give sigmas of more weights"
        )
    a, b = a[both].double(), b[both].double()
    low, middle, high = (float(_quantile(a / b, share)) for share in (0.1, 0.5, 0.9))
    return Agreement(rank_correlation(a, b), (low, middle, high))


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rho: the correlation of ranks, where ties have their mean rank; NaN where one side is constant.

    >>> import torch
    >>> rank_correlation(torch.tensor([1.0, 2.0, 30.0]), torch.tensor([0.1, 0.2, 0.3]))
    1.0
    """
    x, y = (ranks - ranks.mean() for ranks in map(_ranks, (a, b)))
    return float((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt())


def _quantile(values: Tensor, share: float) -> Tensor:
    """A quantile that is one of the values; torch.quantile interpolates, and refuses large tensors."""
    return values.kthvalue(max(1, round(share * values.numel()))).values


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value, from 1; equal values share the mean of their ranks."""
    flat = values.reshape(-1)
    if flat.is_floating_point():
        # As integers in the same order, which torch sorts ten times faster: the bits of negative floats count
        # downwards, and adding zero makes -0.0 and 0.0 one value.
        bits = (flat.double() + 0.0).view(torch.int64)
        flat = bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)
    ordered, order = flat.sort()
    new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    group = new.cumsum(0) - 1
    counts = torch.bincount(group)
    middle = counts.cumsum(0).double() - (counts - 1) / 2
    ranks = torch.empty(len(order), dtype=torch.float64, device=values.device)
    return ranks.scatter_(0, order, middle[group])
