import math

import pytest
import torch
from scipy import stats

from prunewald.statistics.concordance import rank_correlation


def test_rank_correlation_is_spearman_s_with_ties():
    a, b = torch.randint(0, 9, (300,)), torch.randint(0, 9, (300,))
    assert rank_correlation(a, a + b) == pytest.approx(stats.spearmanr(a.numpy(), (a + b).numpy()).statistic)


def test_rank_correlation_with_a_constant_is_not_a_number():
    assert math.isnan(rank_correlation(torch.ones(5), torch.arange(5)))
