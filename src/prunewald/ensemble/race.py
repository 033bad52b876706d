"""Which way of training is faster on this CPU: both take turns, each judged by the turn that was disturbed least."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from prunewald.ensemble.job import Job
from prunewald.ensemble.loop_trainer import LoopTrainer
from prunewald.ensemble.trainer import Trainer
from prunewald.ensemble.vmap_trainer import VmapTrainer

_MARGIN = 1.1  # the plain loop is taken where it is faster by more than this: a choice near one would be the clock's
_CLEAR = 1.2  # how far beyond the margin the times of both ways have to be for the race to end early
_LEAST, _MOST = 3, 20  # turns: libraries set themselves up in the first one
_WAITING = 2  # threads that take so many times as long as one alone are left out of the race
_SECONDS = 1.0  # no turn begins later than this


def loop_is_faster(job: Job, chunk: int) -> str:
    """How much faster a plain loop is on this CPU; "" where it is not, or hardly."""
    together, alone = step_seconds(job, chunk)
    if together <= _MARGIN * alone:
        return ""
    return f"faster here ({1e3 * alone:.2f} ms a step against {1e3 * together:.2f})"


def step_seconds(job: Job, chunk: int) -> tuple[float, float]:
    """How long a replica's step takes, in a step of `chunk` replicas together and in a plain loop."""
    # Both runs take as many steps of a replica, so that a disturbance hits them alike.
    many, one = _run(VmapTrainer(job.rows(0, chunk)), 1), _run(LoopTrainer(job.rows(0, 1)), chunk)
    together = alone = math.inf
    threads = torch.get_num_threads() > 1
    began = time.perf_counter()
    for turn in range(1, _MOST + 1):
        together, alone = min(together, _one_thread(many)), min(alone, _one_thread(one))
        if threads:
            wall = _all_threads(one)
            threads = wall < _WAITING * alone
            together, alone = min(together, _all_threads(many) if threads else math.inf), min(alone, wall)
        ratio = together / (_MARGIN * alone)
        clear = turn >= _LEAST and not 1 / _CLEAR < ratio < _CLEAR
        if clear or time.perf_counter() - began > _SECONDS:
            break
    return together / chunk, alone / chunk


def _run(trainer: Trainer, steps: int) -> Callable[[], None]:
    """Steps with the first batch."""
    rows = trainer.job.epoch(0, trainer.job.sample())[0]

    def run() -> None:
        with trainer.context():
            for _ in range(steps):
                trainer.step(rows)

    return run


def _one_thread(run: Callable[[], None]) -> float:
    """The time that one thread itself takes, which other processes can hardly lengthen."""
    with _single():
        began = time.thread_time()
        run()
        return time.thread_time() - began


def _all_threads(run: Callable[[], None]) -> float:
    """The time with all threads, as it is trained; where the machine is busy, they mostly wait for each other."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@contextmanager
def _single() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
