"""`prunewald reproduce`: an experiment of the paper, from data to records, table and figure."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from prunewald.lab.cache import Cache
from prunewald.lab.data import Raw, load
from prunewald.lab.machine import Machine, environment
from prunewald.lab.methods import methods_of
from prunewald.lab.networks import Networks
from prunewald.lab.pages import describe, needs, pages
from prunewald.lab.pieces import Over, Pieces
from prunewald.lab.pool import Tick, cpus, each
from prunewald.lab.protocol import Protocol
from prunewald.lab.records import RecordFolder, read_records
from prunewald.lab.settings import Settings
from prunewald.util.progress import progress_bar


@dataclass(frozen=True)
class Run:
    """An experiment on a machine, until the deadline; all of it can be sent to another process."""

    settings: Settings
    out: Path
    machine: Machine
    read: Callable[[], Raw]  # the data
    deadline: float = math.inf  # by the monotonic clock
    hard: float = math.inf  # what would not be done by then is not begun

    def workers(self) -> int:
        """How many processes share the seeds: one, unless it is a CPU of this machine that trains."""
        alone = self.machine.executor is not None or self.machine.torch_device().type != "cpu"
        return 1 if alone else min(self.machine.workers or cpus(), self.settings.repetitions)

    def parts(self) -> list[Sequence[int]]:
        """The seeds of each process."""
        workers = self.workers()
        return [self.settings.seeds[first::workers] for first in range(workers)]

    def protocol(self, seeds: Sequence[int], raw: Raw, say: Callable[[str], None], **how: Any) -> Protocol:
        """What runs these seeds in one process; `how` are more arguments of `train_many`."""
        device, machine = self.machine.torch_device(), self.machine
        if machine.executor:
            how |= {"executor": machine.executor, "address": machine.address}
        torch.backends.cuda.matmul.allow_tf32 = self.settings.tf32
        networks = Networks.of(self.settings, raw, device, **how)
        results = RecordFolder(self.out, self.settings, raw.source)
        cache = Cache(results.folder / "networks", networks.make)
        # A GPU trains some networks in the time of one, and a cluster wants work for all of it.
        least = 64 if machine.executor else 1 if device.type == "cpu" else 32
        most = max(1, networks.most // self.workers())
        pieces = Pieces(cache, machine.piece, least, most, self.deadline, self.hard)
        return Protocol(networks, results, cache, seeds, pieces, environment(device), say)

    def everything(self) -> bool:
        """Run what is missing; returns whether time was enough. On a CPU processes share the seeds."""
        raw = self.read()
        RecordFolder(self.out, self.settings, raw.source).read()  # a damaged record should show before the work begins
        parts = self.parts()
        if len(parts) == 1:
            return _in_time(self.protocol(parts[0], raw, _say, progress=sys.stderr.isatty()))
        del raw  # each process reads its own
        # What the first networks chose is known to all processes once all have finished these.
        passes = 2 if self.settings.tuning else 1
        with progress_bar(total=0, show=False) as bar:
            done = [each(partial(_part, self), parts, len(parts), bar) for _ in range(passes)]
        return all(map(all, done))


def _part(run: Run, seeds: Sequence[int], tick: Tick) -> bool:
    """What one of several processes does."""
    torch.set_num_threads(max(1, cpus() // run.workers()))

    def say(text: str) -> None:
        tick(text)  # which ends this process where another one has failed
        _say(text)

    return _in_time(run.protocol(seeds, run.read(), say, progress=False))


def _in_time(protocol: Protocol) -> bool:
    try:
        protocol.run()
    except Over:
        return False
    return True


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def finish(settings: Settings, out: Path, machine: Machine, began: float | None = None) -> str:
    """Run what is missing of an experiment; returns what to say where time was not enough, else ""."""
    methods_of(settings)
    machine.torch_device()
    began = time.monotonic() if began is None else began  # where several share the time
    read = partial(load, settings.experiment, machine.data, side=settings.side)
    deadline = math.inf if machine.minutes is None else began + 60 * machine.minutes
    hard = math.inf if machine.limit_seconds is None else began + machine.limit_seconds
    complete = Run(settings, out, machine, read, deadline, hard).everything()
    return "" if complete else f"\nstopped {machine.stops}, as asked: the same command goes on"


def reproduce(settings: Settings, out: Path, machine: Machine) -> str:
    """Run what is missing of an experiment; returns the summary of all that is finished."""
    rest = finish(settings, out, machine)
    folder = out / settings.name
    count = len(read_records(folder))
    if not count:
        return f"nothing is finished yet in {folder}{rest}"
    shown = []
    try:
        shown.append(describe(folder))
        shown += ["", *map(str, pages(folder))]
    except ImportError as error:
        shown.append(f"{count} records in {folder}; {needs(error)}, then prunewald results pages {folder}")
    return "\n".join(shown) + rest
