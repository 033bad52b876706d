"""Independent jobs over a few processes, one thread each, with one progress bar.

The networks here are so small that a second thread slows a job down, while a second process doubles the
speed. The results do not depend on the number of processes.
"""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from prunewald.util.progress import Bar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Tick = Callable[[str], None]

_ticks: Any = None  # in a worker: the queue of progress
_stop: Any = None  # in a worker: the event that tells it to give up


def cpus() -> int:
    """Count the processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(job: Callable[[Item, Tick], Answer], items: Sequence[Item], workers: int, bar: Bar) -> list[Answer]:
    """List job(item, tick) of every item, in order; tick(text) moves the bar on by one.

    With more than one worker the job and its arguments are pickled, and a script that calls this needs the
    usual `if __name__ == "__main__"`. Workers end when this process ends, however it does.
    """
    if workers > 1:
        return _spread(job, items, workers, bar)
    with _one_thread():
        return [job(item, lambda text: _show(bar, text)) for item in items]


def _spread(job: Callable[[Item, Tick], Answer], items: Sequence[Item], workers: int, bar: Bar) -> list[Answer]:
    # Not fork: a fork of a process whose OpenMP threads have started can hang.
    context = multiprocessing.get_context("spawn")
    ticks, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(workers, context, _start, (ticks, stop)) as pool:
        jobs = [pool.submit(_work, job, item) for item in items]
        try:
            _follow(jobs, ticks, bar)
            return [done.result() for done in jobs]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _follow(jobs: Sequence[Future[Any]], ticks: Any, bar: Bar) -> None:
    """Show progress until every job is done; raise what a job raised, as soon as it has."""
    while True:
        finished = [job for job in jobs if job.done()]
        for job in finished:
            job.result()
        try:
            _show(bar, ticks.get(timeout=0.2))
        except queue.Empty:
            if len(finished) == len(jobs):
                return


def _show(bar: Bar, text: str) -> None:
    bar.set_description_str(text, refresh=False)
    bar.update()


def _start(ticks: Any, stop: Any) -> None:
    global _ticks, _stop
    _ticks, _stop = ticks, stop
    # Ctrl-C reaches the whole group: the workers end at once and the parent tells the user.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """The parent may be killed without a word, and then nobody waits for this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(job: Callable[[Item, Tick], Answer], item: Item) -> Answer:
    return job(item, _tick)


def _tick(text: str) -> None:
    if _stop.is_set():
        raise RuntimeError("stopped, since another job failed or the user asked for it")
    _ticks.put(text)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
