"""Which way is faster on a CPU, and that a busy machine changes nothing of it."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from benchmarks.ensemble import mlp
from torch import nn

from prunewald.ensemble import RMSprop, race
from prunewald.ensemble.job import Job
from prunewald.lab.architectures import PaperCNN
from tests.ensemble.helpers import dropping

pytestmark = pytest.mark.usefixtures("one_thread")


def job_of(make, replicas, batch_size=128):
    x, y = torch.rand(256, 1, 28, 28), torch.arange(256) % 10
    common = {"loss": F.cross_entropy, "optimizer": RMSprop(lr=1e-3), "epochs": 1, "batch_size": batch_size}
    return Job(make=make, x=x, y=y, seeds=tuple(range(replicas)), device=x.device, **common)


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


# Whether the plain loop is faster with one thread: by a quarter to a half in the first four, and in the others vmap
# takes 0.3 to 0.7 of its time.
CASES = [(PaperCNN, 1, 128, True), (PaperCNN, 8, 128, True), (mlp, 1, 128, True), (mlp, 8, 128, True)]
CASES += [(PaperCNN, 8, 16, False), (small, 8, 128, False)]


@pytest.mark.slow
@pytest.mark.parametrize("busy", [0, 2])
@pytest.mark.parametrize(("make", "replicas", "batch_size", "loop"), CASES)
def test_the_choice_is_the_same_on_a_busy_machine(make, replicas, batch_size, loop, busy):
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        assert bool(race.loop_is_faster(job_of(make, replicas, batch_size), replicas)) == loop
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_the_loop_is_taken_where_it_is_faster_by_more_than_a_tenth(monkeypatch):
    for together, how in (
        (1.0, "vmap"),
        (2.19, "vmap"),
        (3.0, "loop: faster here (2000.00 ms a step against 3000.00)"),
    ):
        monkeypatch.setattr(race, "step_seconds", lambda job, chunk, together=together: (together, 2.0))
        assert dropping(how="auto").how == how


@pytest.mark.parametrize(("threads", "waiting"), [(1, 1.0), (2, 1.0), (2, 50.0)])
def test_a_race_is_short_and_leaves_the_threads_as_they_are(threads, waiting, monkeypatch):
    turns = {"one": 0, "all": 0}

    def one(run):
        turns["one"] += 1
        return 1.0

    def every(run):
        turns["all"] += 1
        return waiting

    monkeypatch.setattr(race, "_one_thread", one)
    monkeypatch.setattr(race, "_all_threads", every)
    torch.set_num_threads(threads)
    try:
        assert race.step_seconds(job_of(small, 2), 2) == (0.5, 0.5)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    # Equal ways take turns to the end; threads that only wait are tried once.
    assert turns == {"one": 40, "all": 0 if threads == 1 else 40 if waiting == 1 else 1}


def test_a_clear_race_ends_after_three_turns(monkeypatch):
    times = []

    def clock(run):
        times.append(2.0 - len(times) % 2)  # vmap comes first in each turn
        return times[-1]

    monkeypatch.setattr(race, "_one_thread", clock)
    assert race.step_seconds(job_of(small, 2), 2) == (1.0, 0.5)
    assert len(times) == 6


def test_a_slow_step_is_timed_once(monkeypatch):
    monkeypatch.setattr(race, "_SECONDS", 0.0)
    calls = []
    monkeypatch.setattr(race, "_one_thread", lambda run: calls.append(run) or 1.0)
    race.step_seconds(job_of(small, 2), 2)
    assert len(calls) == 2
