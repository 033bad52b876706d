"""Timing that noise does not decide: all ways take turns, many times over, and what was disturbed does not count."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_ROUNDS, _FEWEST = 21, 7
_BLOCK = 4e-4  # seconds of one way's turn, at the least
_SECONDS = 3.0  # of a whole comparison, after which only the fewest rounds are waited for
_HOPELESS, _JUDGED = 2.5, 2  # times slower than the fastest after the third round: out

Times = dict[str, list[float]]


def race(ways: Mapping[str, Callable[[], object]], base: str) -> Times:
    """Seconds a call, round by round; a way that is far behind has fewer rounds than `base`, which stays to the end."""
    times: Times = {name: [] for name in ways}
    began = time.perf_counter()
    with _undisturbed():
        counts = {name: _warmed(way) for name, way in ways.items()}
        running = list(ways)
        for turn in range(_ROUNDS):
            if turn >= _FEWEST and time.perf_counter() - began > _SECONDS:
                break
            for name in running:
                times[name].append(_turn(ways[name], counts[name]))
            if turn == _JUDGED:
                limit = _HOPELESS * min(map(typical, times.values()))
                running = [name for name in ways if name == base or typical(times[name]) <= limit]
    return times


def typical(seen: Sequence[float]) -> float:
    """The lower quartile: others who use the machine make calls longer, never shorter."""
    return sorted(seen)[(len(seen) - 1) // 4]


def clearly_faster(times: Times, base: str, name: str, margin: float) -> bool:
    """Whether a way is faster by more than the margin, in its typical time and in its shortest."""
    limit = 1 + margin
    return all(what(times[base]) > limit * what(times[name]) for what in (typical, min))


def _warmed(way: Callable[[], object]) -> int:
    """Calls a turn, so that a turn is long enough for the clock."""
    way()
    return max(1, min(1000, round(_BLOCK / max(_turn(way, 3), 1e-9))))


def _turn(way: Callable[[], object], calls: int) -> float:
    way()  # the caches belong to this way when the clock starts
    began = time.perf_counter()
    for _ in range(calls):
        way()
    return (time.perf_counter() - began) / calls


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the garbage collector."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
