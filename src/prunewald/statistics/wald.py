"""What the Wald test says of a weight."""

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
