"""A race is decided by what the ways take, not by who was disturbed."""

import gc

import pytest

from prunewald.sparse import stopwatch
from prunewald.sparse.backends import Way
from prunewald.sparse.stopwatch import clearly_faster, race, typical
from prunewald.sparse.trial import fastest


@pytest.fixture
def clock(monkeypatch):
    """Time that only the ways make go by."""
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])

    def way(*seconds):
        left = list(seconds)

        def call():
            now[0] += left.pop(0) if len(left) > 1 else left[0]

        return call

    return way


def test_seconds_a_call(clock):
    times = race({"dense": clock(2e-4), "a": clock(1e-4)}, "dense")
    assert typical(times["dense"]) == pytest.approx(2e-4)
    assert typical(times["a"]) == pytest.approx(1e-4)
    assert len(times["a"]) == len(times["dense"]) == 21
    assert clearly_faster(times, "dense", "a", 0.05)
    assert not clearly_faster(times, "a", "dense", 0.05)


def test_what_is_far_behind_is_out_after_three_rounds_but_dense_never(clock):
    times = race({"dense": clock(1e-2), "a": clock(1e-3), "b": clock(3e-3)}, "dense")
    assert [len(times[name]) for name in ("dense", "a", "b")] == [21, 21, 3]


def test_long_calls_have_fewer_rounds(clock):
    times = race({"dense": clock(1.0), "a": clock(0.5)}, "dense")
    assert len(times["dense"]) == 7


def test_a_turn_that_others_disturb_is_cut_short(clock):
    calls = [0]

    def way():
        calls[0] += 1
        (quick if calls[0] < 5 else slow)()

    quick, slow = clock(1e-7), clock(0.02)
    race({"dense": clock(1e-3), "a": way}, "dense")
    assert calls[0] < 60


def test_noise_decides_nothing():
    times = {"dense": [1.0, 1.0, 9.0, 9.0, 9.0], "a": [0.99, 0.99, 1.0, 1.0, 1.0]}
    assert not clearly_faster(times, "dense", "a", 0.05)
    assert clearly_faster({**times, "a": [0.9, 0.9, 20.0, 20.0, 20.0]}, "dense", "a", 0.05)


def test_more_threads_only_where_they_clearly_pay():
    found = {"one": Way("c", "rows"), "two": Way("c", "rows", 0, 2)}
    assert fastest({"one": [1.0] * 4, "two": [0.98] * 4}, found, 0.05) == "one"
    assert fastest({"one": [1.0] * 4, "two": [0.6] * 4}, found, 0.05) == "two"
    assert fastest({"two": [0.6] * 4}, found, 0.05) == "two"
    assert fastest({}, found, 0.05) == ""


def test_the_garbage_collector_is_as_it_was():
    for enabled in (True, False):
        gc.enable() if enabled else gc.disable()
        try:
            race({"dense": lambda: None}, "dense")
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
