"""Runs of every strategy on a tiny model, to be compared, killed and taken up by another process.

`python -m tests.strategies.runs FOLDER` kills each of CASES at its point, by a real SIGKILL, goes on in a new process
with another model, and writes what came out. Each process is a fork of one that only imported torch, which is slow.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import prunewald as pw
from prunewald.strategies import Checkpoint, certify_sparsity, find_sparsity, iterative
from tests.strategies.helpers import Work

LEVELS = (0.3, 0.5, 0.7, 0.8)
POINTS: list[Any] = [(1, 5), (3, 9), "writing"]  # round and step, or while round 2 is written


def _iterative(kill: Any, folder: Path | None, seed: int, **options: Any) -> Work:
    choice = options.pop("choice", {"uncertainty": pw.PseudoBootstrap(last=10)})
    work = Work(seed, kill=kill, **choice)
    work.steps(12)
    rounds = iterative(work.pruner, LEVELS, work.train, folder=folder, **options)
    work.trained = [one.result or torch.nan for one in rounds]
    return work


def _rewound(kill: Any, folder: Path | None, seed: int) -> Work:
    work = Work(0, kill=kill, uncertainty=pw.SecondMoment())  # who rewinds must bring the checkpoint again
    work.steps(4)
    early = Checkpoint(work.model, work.optimizer)
    work.steps(8 + seed)
    rounds = iterative(work.pruner, LEVELS, work.train, rewind=early.weights_, folder=folder)
    work.trained = [one.result or torch.nan for one in rounds]
    return work


def _found(kill: Any, folder: Path | None, seed: int) -> Work:
    work = Work(seed, kill=kill, uncertainty=pw.PseudoBootstrap(last=10))
    work.steps(12)
    search = find_sparsity(work.pruner, work.train, work.accuracy, budget=0.1, levels=LEVELS, folder=folder)
    work.trained = [c.value for c in search.candidates]
    return work


def _certified(kill: Any, folder: Path | None, seed: int) -> Work:
    work = Work(seed, kill=kill, criterion="wanda")
    work.steps(12)
    found = certify_sparsity(work.pruner, work.train, work.losses, drop=0.25, levels=LEVELS, folder=folder)
    work.trained = [c.p for c in found.tested]
    return work


KINDS: dict[str, Callable[[Any, Path | None, int], Work]] = {
    "plain": _iterative,
    "tuned": lambda kill, folder, seed: _iterative(kill, folder, seed, lr_factor=0.3, dropout=True),
    "by gradient": lambda kill, folder, seed: _iterative(kill, folder, seed, choice={"criterion": "snip"}),
    "rewound": _rewound,
    "found": _found,
    "certified": _certified,
}
CASES = [(kind, point) for kind in KINDS for point in POINTS]


def go(kind: str, folder: Path | None, kill: Any = None, seed: int = 0) -> dict[str, Any]:
    """One run, from start to end unless it is killed."""
    work = KINDS[kind](kill if kill != "writing" else None, folder, seed)
    return work.state() | {"trained": work.trained}


def _kill_while_writing() -> None:
    """At the fourth file: the plan, the start and the first round are there."""
    calls = iter(range(3))
    whole = os.fsync

    def fsync(fd: int) -> None:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        whole(fd)

    os.fsync = fsync  # type: ignore[assignment]


def _forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(3)  # unless it was ended before
    return os.waitpid(pid, 0)[1]


def main(root: Path) -> None:
    """Kill every case, go on with it."""
    torch.set_num_threads(1)
    Work()  # hooks need torch's compiler: a slow import, that the forks are spared
    for at, (kind, point) in enumerate(CASES):
        folder = root / f"case-{at}"

        def killed(kind: str = kind, point: Any = point, folder: Path = folder) -> None:
            if point == "writing":
                _kill_while_writing()
            go(kind, folder, kill=point)

        def resumed(kind: str = kind, folder: Path = folder, at: int = at) -> None:
            torch.save(go(kind, folder, seed=1), root / f"outcome-{at}")
            os._exit(0)

        status = _forked(killed)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (kind, point, status)
        assert _forked(resumed) == 0, (kind, point)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
