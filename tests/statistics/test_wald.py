import math

import pytest
import torch
from scipy import stats

import prunewald as pw


def test_the_wald_test_is_the_normal_one():
    weight, se = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64) + 0.1
    z, p = pw.wald_test(weight, se)
    torch.testing.assert_close(z, weight / se)
    torch.testing.assert_close(p, torch.from_numpy(2 * stats.norm.sf(z.abs().numpy())))


def test_a_zero_weight_is_never_significant_and_no_error_always():
    z, p = pw.wald_test(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, math.inf]))
    assert z.tolist() == [0.0, math.inf, 0.0]
    assert p.tolist() == [1.0, 0.0, 1.0]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"se has shape \(2,\), the weights \(3,\)"):
        pw.wald_test(torch.ones(3), torch.ones(2))
