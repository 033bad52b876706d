"""What the Wald test says of a weight, and how two orders of weights agree."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class WaldTest(NamedTuple):
    """z = w / SE, and the two-sided p-value of H0: w = 0."""

    z: Tensor
    p: Tensor


def wald_test(weight: Tensor, se: Tensor, df: float | None = None) -> WaldTest:
    """Test each weight against zero; `se` must be a standard error for `p` to be a p-value.

    z is taken as normal, or as t-distributed with `df` degrees of freedom.

    >>> wald_test(torch.tensor([1.96]), torch.tensor([1.0])).p.round(decimals=3)
    tensor([0.0500])
    """
    if weight.shape != se.shape:
        raise ValueError(f"se has shape {tuple(se.shape)}, the weights {tuple(weight.shape)}: give one for each weight")
    z = (weight / se).masked_fill(weight == 0, 0.0)
    return WaldTest(z, p_value(z, df))


def p_value(z: Tensor, df: float | None = None) -> Tensor:
    """The two-sided p-value of a Wald statistic.

    >>> p_value(torch.tensor([1.96, -2.5758])).round(decimals=3)
    tensor([0.0500, 0.0100])
    """
    if df is None:
        return torch.erfc(z.abs() / 2**0.5)
    from scipy import stats

    return torch.from_numpy(2 * stats.t.sf(z.abs().cpu().double().numpy(), df)).to(z)


def critical_value(alpha: float, df: float | None = None) -> float:
    """The |z| beyond which a weight is significant at level alpha: Phi^-1(1 - alpha / 2).

    >>> round(critical_value(0.05), 2)
    1.96
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, not {alpha!r}")
    from scipy import stats

    return float(stats.norm.isf(alpha / 2) if df is None else stats.t.isf(alpha / 2, df))


def discoveries(p: Tensor, q: float, method: Literal["bh", "by"] = "bh") -> Tensor:
    """True for the weights found different from zero with a false discovery rate of at most q.

    Benjamini & Hochberg (1995), for independent or positively dependent tests; "by" is Benjamini & Yekutieli (2001),
    for any dependence.
    """
    if not 0 < q < 1:
        raise ValueError(f"the false discovery rate must lie between 0 and 1, not {q!r}")
    if not p.numel():
        return torch.zeros_like(p, dtype=torch.bool)
    from scipy.stats import false_discovery_control

    adjusted = false_discovery_control(p.detach().cpu().double().reshape(-1).numpy(), method=method)
    return (torch.from_numpy(adjusted) <= q).reshape(p.shape).to(p.device)


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
    x, y = (ranks - ranks.mean() for ranks in _ranks(a, b))
    return float((x * y).sum() / (x.square().sum() * y.square().sum()).sqrt())


def _ranks(*several: Tensor) -> Iterator[Tensor]:
    """The ranks of the values of each tensor."""
    for values in several:
        _, inverse, counts = values.reshape(-1).unique(return_inverse=True, return_counts=True)
        middle: Tensor = counts.cumsum(0).double() - (counts - 1) / 2
        yield middle[inverse]
