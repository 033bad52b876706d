import pytest
from scipy import stats as reference

from prunewald.statistics import holm, paired


def test_paired_is_scipys() -> None:
    a, b = [1.0, 2.5, 3.0, 4.75], [0.5, 2.0, 3.5, 4.0]
    ours, theirs = paired(a, b, confidence=0.9), reference.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.9)
    assert ours.mean == pytest.approx(0.3125)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))
    assert ours.p == pytest.approx(theirs.pvalue)
    assert ours.n == 4


def test_equal_gaps_have_no_width() -> None:
    same = paired([2.0, 3.0], [1.0, 2.0])
    assert (same.mean, same.low, same.high, same.p) == (1, 1, 1, 0)
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_too_few_pairs(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=f"two or more pairs, got {len(a)} and {len(b)}"):
        paired(a, b)


@pytest.mark.parametrize("confidence", [0, 1, 95, float("nan")])
def test_a_confidence_out_of_range(confidence: float) -> None:
    with pytest.raises(ValueError, match=f"confidence={confidence}: .*above 0 and below 1"):
        paired([1.0, 2.0], [1.0, 2.5], confidence)


def test_difference_prints_with_its_interval() -> None:
    assert str(paired([3.0, 4.0, 5.0], [1.0, 2.5, 2.5])) == "+2.00 [+0.76, +3.24]"


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_what_is_no_p_value(p: float) -> None:
    with pytest.raises(ValueError, match=rf"p\[1\]={p}: give a p-value"):
        holm([0.5, p])
