import math

import pytest
import torch
from scipy import stats

from prunewald.statistics import critical_value, discoveries, p_value, wald_test


def test_the_wald_test_is_the_normal_one():
    weight, se = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64) + 0.1
    z, p = wald_test(weight, se)
    torch.testing.assert_close(z, weight / se)
    torch.testing.assert_close(p, torch.from_numpy(2 * stats.norm.sf(z.abs().numpy())))


def test_a_zero_weight_is_never_significant_and_no_error_always():
    z, p = wald_test(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 0.0, math.inf]))
    assert z.tolist() == [0.0, math.inf, 0.0]
    assert p.tolist() == [1.0, 0.0, 1.0]


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(2,\), the weights \(3,\): give one"):
        wald_test(torch.ones(3), torch.ones(2))


@pytest.mark.parametrize("level", [0, 1, -0.1, math.nan, True, "0.05"])
def test_levels_out_of_range(level):
    with pytest.raises(ValueError, match=f"alpha={level!r}: .*above 0 and below 1"):
        critical_value(level)
    with pytest.raises(ValueError, match=f"q={level!r}: .*above 0 and below 1"):
        discoveries(torch.rand(3), level)


@pytest.mark.parametrize("df", [0, -1.0, math.nan, "many"])
def test_degrees_of_freedom_that_are_none(df):
    for asked in (lambda: p_value(torch.ones(2), df), lambda: critical_value(0.05, df)):
        with pytest.raises(ValueError, match=f"df={df!r}: .*above 0"):
            asked()


def test_an_unknown_way_to_count_discoveries():
    with pytest.raises(ValueError, match="method='holm': .*'bh', 'by'"):
        discoveries(torch.rand(3), 0.1, "holm")


@pytest.mark.parametrize("df", [None, 7])
def test_thresholds_both_ways(df):
    z = critical_value(0.03, df)
    assert float(p_value(torch.tensor([z], dtype=torch.float64), df)) == pytest.approx(0.03)
    assert z == pytest.approx(stats.t.isf(0.015, df) if df else stats.norm.isf(0.015))


def test_t_is_wider_than_normal():
    weight, se = torch.tensor([2.0]), torch.tensor([1.0])
    assert wald_test(weight, se, df=5).p > wald_test(weight, se).p


def test_yekutieli_is_stricter_than_hochberg():
    p = torch.rand(500, generator=torch.Generator().manual_seed(0)) ** 3
    bh, by = discoveries(p, 0.1), discoveries(p, 0.1, "by")
    assert (by <= bh).all()
    assert by.sum() < bh.sum()
    assert discoveries(torch.zeros(0), 0.1).numel() == 0
