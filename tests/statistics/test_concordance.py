import math

import pytest
import torch
from scipy import stats

from prunewald.statistics import agreement, rank_correlation


def test_rank_correlation_is_spearman_s_with_ties():
    a, b = torch.randint(0, 9, (300,)), torch.randint(0, 9, (300,))
    assert rank_correlation(a, a + b) == pytest.approx(stats.spearmanr(a.numpy(), (a + b).numpy()).statistic)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rank_correlation_of_floats_of_all_signs_with_ties_and_both_zeros(dtype):
    torch.manual_seed(0)
    a = torch.randn(500).mul(3).round().div(2).to(dtype)
    b = (a + torch.randn(500).round()).to(dtype)
    assert (a == 0).any()
    expected = stats.spearmanr(a.double().numpy(), b.double().numpy()).statistic
    assert rank_correlation(a, b) == pytest.approx(expected)
    assert rank_correlation(-a, b) == pytest.approx(-expected), "-0.0 is 0.0"


def test_rank_correlation_with_a_constant_is_not_a_number():
    assert math.isnan(rank_correlation(torch.ones(5), torch.arange(5)))


def test_agreement_of_two_sigmas():
    a = torch.rand(1000, generator=torch.Generator().manual_seed(0)) + 0.1
    found = agreement(a, 2 * a)
    assert found.correlation == pytest.approx(1)
    assert found.quantiles == pytest.approx((0.5, 0.5, 0.5))
    a[0] = math.inf
    assert agreement(a, a).correlation == pytest.approx(1)
    with pytest.raises(ValueError, match="only 0 of 4 weights .*: give sigmas"):
        agreement(torch.zeros(4), torch.ones(4))
