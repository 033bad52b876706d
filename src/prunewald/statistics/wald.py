"""The Wald test of a weight against zero, and what it finds among many weights."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from prunewald.util.arguments import one_of, real


class WaldTest(NamedTuple):
    """z = w / SE, and the two-sided p-value of H0: w = 0."""

    z: Tensor
    p: Tensor


def wald_test(weight: Tensor, se: Tensor, df: float | None = None) -> WaldTest:
    """Test each weight against zero; `se` must be a standard error for `p` to be a p-value.  Wald (1943).

    z is taken as normal, or as t-distributed with `df` degrees of freedom (`.degrees` of what a closed form gave). A
    weight of zero has z = 0 and p = 1, also where its standard error is zero.

    >>> wald_test(torch.tensor([1.96]), torch.tensor([1.0])).p.round(decimals=3)
    tensor([0.0500])
    """
    if weight.shape != se.shape:
        raise ValueError(f"se has shape {tuple(se.shape)}, the weights {tuple(weight.shape)}: give one for each weight")
    z = (weight / se).masked_fill(weight == 0, 0.0)
    return WaldTest(z, p_value(z, df))


def p_value(z: Tensor, df: float | None = None) -> Tensor:
    """The two-sided p-value of a Wald statistic: how often one at least as far from zero comes from a weight of zero.

    >>> p_value(torch.tensor([1.96, -2.5758])).round(decimals=3)
    tensor([0.0500, 0.0100])
    """
    if df is None:
        return torch.erfc(z.abs() / 2**0.5)
    from scipy import stats

    return torch.from_numpy(2 * stats.t.sf(z.abs().cpu().double().numpy(), _degrees(df))).to(z)


def critical_value(alpha: float, df: float | None = None) -> float:
    """The |z| beyond which a weight is significant at level alpha: Phi^-1(1 - alpha / 2).

    >>> round(critical_value(0.05), 2)
    1.96
    """
    real("alpha", alpha, above=0, below=1, what="the level of the test,")
    from scipy import stats

    return float(stats.norm.isf(alpha / 2) if df is None else stats.t.isf(alpha / 2, _degrees(df)))


def discoveries(p: Tensor, q: float, method: Literal["bh", "by"] = "bh") -> Tensor:
    """True for the weights found different from zero with a false discovery rate of at most q.

    "bh" is Benjamini & Hochberg (1995), for independent or positively dependent tests; "by" is Benjamini & Yekutieli
    (2001), for any dependence.

    >>> discoveries(torch.tensor([0.001, 0.02, 0.03, 0.8]), q=0.05)
    tensor([ True,  True,  True, False])
    >>> discoveries(torch.tensor([0.001, 0.02, 0.03, 0.8]), q=0.05, method="by")
    tensor([ True, False, False, False])
    """
    real("q", q, above=0, below=1, what="the false discovery rate to allow,")
    one_of("method", method, ("bh", "by"))
    if not p.numel():
        return torch.zeros_like(p, dtype=torch.bool)
    from scipy.stats import false_discovery_control

    adjusted = false_discovery_control(p.detach().cpu().double().reshape(-1).numpy(), method=method)
    return (torch.from_numpy(adjusted) <= q).reshape(p.shape).to(p.device)


def _degrees(df: float) -> float:
    return real("df", df, above=0, what="degrees of freedom, or None for the normal distribution:")
