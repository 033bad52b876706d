import numpy as np
import pytest

from prunewald.core.schedules import Cubic, Stairs, check_levels


def due(schedule, last=40):
    return {step: level for step in range(-3, last) if (level := schedule(step)) is not None}


def test_cubic_is_the_formula_at_its_steps_and_nothing_elsewhere():
    """Zhu & Gupta (2017), eq. 1: s_f + (s_i - s_f)(1 - (t - t0) / (n Δt))³."""
    found = due(Cubic(0.8, begin=2, end=9, every=3, initial=0.1))
    assert found == pytest.approx({t: 0.8 + (0.1 - 0.8) * (1 - (t - 2) / 7) ** 3 for t in (2, 5, 8, 9)})


@pytest.mark.parametrize("final", [0.9, 0.1, 1 / 3])
@pytest.mark.parametrize("end", [10, 11])
def test_cubic_ends_exactly_at_final(final, end):
    assert list(due(Cubic(final, begin=3, end=end, every=4)).values())[-1] == final


def test_stairs_have_a_level_each():
    stairs = Stairs((0.5, 0.75, 0.9), begin=4, every=2)
    assert due(stairs) == {4: 0.5, 6: 0.75, 8: 0.9}
    assert stairs.final == 0.9
    assert due(Stairs((0.3,), begin=7)) == {7: 0.3}


def test_levels_of_numpy_are_plain_numbers():
    stairs = Stairs(np.linspace(0.5, 0.75, 2, dtype=np.float32))
    assert stairs == Stairs([0.5, 0.75]) == Stairs((0.5, 0.75))
    assert [type(level) for level in stairs.levels] == [float, float]
    assert check_levels((0, np.float64(0.5))) == (0.0, 0.5)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Cubic, {"begin": 10, "end": 10}, "step 10.*begins at 10.*end must be later"),
        (Cubic, {"begin": 10, "end": 3}, "step 3.*begins at 10.*end must be later"),
        (Cubic, {"initial": 0.5, "final": 0.4}, r"initial, final=\(0.5, 0.4\)"),
        (Cubic, {"final": 1.0}, "^final=1.0.*below 1"),
        (Cubic, {"final": 90}, "final=90.*below 1"),
        (Cubic, {"final": float("nan")}, "final=nan"),
        (Cubic, {"final": "0.9"}, "final='0.9'"),
        (Cubic, {"initial": -0.1}, "initial=-0.1.*at least 0"),
        (Cubic, {"every": 0}, "every=0.*at least 1"),
        (Cubic, {"every": 2.5}, "every=2.5.*whole"),
        (Cubic, {"every": True}, "every=True.*whole"),
        (Cubic, {"begin": -1}, "begin=-1.*at least 0"),
        (Cubic, {"begin": "0"}, "begin='0'.*whole"),
        (Cubic, {"end": 10.5}, "end=10.5.*whole"),
        (Stairs, {"levels": ()}, r"levels=\(\).*rising"),
        (Stairs, {"levels": (0.5, 0.4)}, r"levels=\(0.5, 0.4\)"),
        (Stairs, {"levels": (0.5, 0.5)}, r"levels=\(0.5, 0.5\).*above"),
        (Stairs, {"levels": (0.5, 1.5)}, "levels=1.5.*below 1"),
        (Stairs, {"begin": None}, "begin=None.*whole"),
        (Stairs, {"every": -3}, "every=-3.*at least 1"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)
