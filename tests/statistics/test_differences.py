import pytest
from scipy import stats as reference

from prunewald.statistics.differences import holm, paired


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
    with pytest.raises(ValueError, match=f"two or more pairs, got {len(a)} and {len(b)} values"):
        paired(a, b)


def test_difference_prints_with_its_interval() -> None:
    assert str(paired([3.0, 4.0, 5.0], [1.0, 2.5, 2.5])) == "+2.00 [+0.76, +3.24]"


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
