import time

import pytest
import torch

from prunewald.lab.pool import Tick, cpus, each


class Recorder:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def update(self, n: int = 1) -> None: ...

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        self.seen.append(desc)


def square(item: int, tick: Tick) -> tuple[int, int]:
    tick(f"item {item}")
    return item * item, torch.get_num_threads()


def fail_or_go_on(item: int, tick: Tick) -> None:
    if item == 1:
        raise ValueError("item 1 is bad")
    while True:
        tick("on and on")
        time.sleep(0.05)


def fail_at_two(item: int, tick: Tick) -> int:
    if item == 2:
        raise ValueError("item 2 is bad")
    return item


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_results_are_in_order_with_every_tick(workers: int) -> None:
    bar, before = Recorder(), torch.get_num_threads()
    assert each(square, range(5), workers, bar) == [(0, 1), (1, 1), (4, 1), (9, 1), (16, 1)]
    assert sorted(bar.seen) == [f"item {item}" for item in range(5)]
    assert torch.get_num_threads() == before


def test_a_failure_is_the_jobs_own() -> None:
    with pytest.raises(ValueError, match="item 2 is bad"):
        each(fail_at_two, range(4), 1, Recorder())


@pytest.mark.slow
def test_a_failure_in_a_process_is_the_jobs_own_and_stops_the_others() -> None:
    with pytest.raises(ValueError, match="item 1 is bad"):
        each(fail_or_go_on, range(2), 2, Recorder())


def test_cpus() -> None:
    assert cpus() >= 1
