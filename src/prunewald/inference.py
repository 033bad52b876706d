"""What the Wald test says of a weight, and how two orders of weights agree."""

from typing import NamedTuple

import torch
from torch import Tensor


class WaldTest(NamedTuple):
    """z = w / SE, and the two-sided p-value of H0: w = 0."""

    z: Tensor
    p: Tensor


def wald_test(weight: Tensor, se: Tensor) -> WaldTest:
    """Test each weight against zero; `se` must be a standard error for `p` to be a p-value.

    >>> wald_test(torch.tensor([1.96]), torch.tensor([1.0])).p.round(decimals=3)
    tensor([0.0500])
    """
    if weight.shape != se.shape:
        raise ValueError(f"se has shape {tuple(se.shape)}, the weights {tuple(weight.shape)}: give one for each weight")
    z = (weight / se).masked_fill(weight == 0, 0.0)
    return WaldTest(z, torch.erfc(z.abs() / 2**0.5))


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
