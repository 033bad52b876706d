import math
from fractions import Fraction

import numpy as np
import pytest

from prunewald.util.arguments import one_of, real, share, whole


@pytest.mark.parametrize("value", [1, 3, np.int8(3), np.int64(1)])
def test_a_whole_number_comes_back_as_python_s_own(value):
    found = whole("every", value, 1, 3)
    assert (found, type(found)) == (int(value), int)


@pytest.mark.parametrize("value", [0, 4, -1, 2.0, True, "2", None, math.nan, np.float32(2), np.bool_(True)])
def test_what_is_no_whole_number_in_range_is_repeated(value):
    with pytest.raises(ValueError, match="every=.*from 1 to 3") as caught:
        whole("every", value, 1, 3)
    assert str(caught.value).startswith(f"every={value!r}: give ")


def test_a_whole_number_may_have_no_upper_limit():
    assert whole("steps", 10**30) == 10**30
    with pytest.raises(ValueError, match="steps=-1.*at least 0"):
        whole("steps", -1)


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), np.int64(1), Fraction(1, 2)])
def test_a_number_comes_back_as_python_s_own(value):
    found = real("decay", value)
    assert (found, type(found)) == (float(value), float)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "0.5", None, 1j, [0.5]])
def test_what_is_no_finite_number_is_repeated(value):
    with pytest.raises(ValueError, match="decay=") as caught:
        real("decay", value)
    assert str(caught.value) == f"decay={value!r}: give a number"


@pytest.mark.parametrize(
    ("value", "limits", "words"),
    [
        (1, {"least": 0, "below": 1}, "at least 0 and below 1"),
        (0, {"above": 0, "most": 1}, "above 0 and at most 1"),
        (-0.1, {"least": 0}, "at least 0"),
    ],
)
def test_limits_are_kept_and_named(value, limits, words):
    assert real("x", 0.5, **limits) == 0.5
    with pytest.raises(ValueError, match=f"x={value}.*{words}"):
        real("x", value, **limits)


@pytest.mark.parametrize("value", [1, 1.0, -0.1, 90, "0.9", math.nan])
def test_a_share_is_at_least_0_and_below_1(value):
    assert share("sparsity", 0) == 0
    assert share("sparsity", np.float32(0.5)) == 0.5
    with pytest.raises(ValueError, match=f"sparsity={value!r}.*0.9 prunes 90 %.*at least 0 and below 1"):
        share("sparsity", value)


def test_one_of_a_few():
    one_of("relative_to", None, ("layer", None))
    with pytest.raises(ValueError, match="relative_to='row'.*'layer', None"):
        one_of("relative_to", "row", ("layer", None))
