"""How two orders of weights agree."""

from typing import NamedTuple

from torch import Tensor


class Agreement(NamedTuple):
    """How two uncertainties of the same weights compare."""

    correlation: float  # Spearman's
    quantiles: tuple[float, float, float]  # of the ratio of the first to the second: 10 %, median, 90 %


def agreement(a: Tensor, b: Tensor) -> Agreement:
    """Compare two sigmas where both are finite and above zero."""
    both = a.isfinite() & b.isfinite() & (a > 0) & (b > 0)
    if int(both.sum()) < 2:
        raise ValueError("fewer than two weights have both sigmas: nothing to compare")
    a, b = a[both].double(), b[both].double()
    low, middle, high = (float(_quantile(a / b, share)) for share in (0.1, 0.5, 0.9))
    return Agreement(rank_correlation(a, b), (low, middle, high))


def _quantile(values: Tensor, share: float) -> Tensor:
    """A quantile that is one of the values, at any size."""
    return values.kthvalue(max(1, round(share * values.numel()))).values


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rho, ties by their mean rank; NaN where one side is constant."""
    x, y = (_ranks(values) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt())


def _ranks(values: Tensor) -> Tensor:
    _, inverse, counts = values.reshape(-1).unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    middle: Tensor = last - (counts - 1) / 2
    return middle[inverse]
