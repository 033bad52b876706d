"""`prunewald reproduce`: an experiment of the paper, from data to records, table and figure."""

import json
import math
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import prunewald as pw
from prunewald.figures import write
from prunewald.lab import summary
from prunewald.lab.cache import Cache
from prunewald.lab.data import Raw, load
from prunewald.lab.methods import methods_of
from prunewald.lab.networks import Networks
from prunewald.lab.pool import Tick, cpus, each
from prunewald.lab.protocol import Over, Protocol
from prunewald.lab.records import RecordFolder, data_of, experiment_of, read_records
from prunewald.lab.settings import Settings
from prunewald.util.files import replacing
from prunewald.util.progress import progress_bar

# What the paper says in words; its other numbers are in its figures only.
PAPER_SAYS = {
    "fashion-mnist": "dense 81.21 %; over ABS on 11 levels: bootstrap wins 10, pseudo bootstrap 8",
    "cifar10": "dense 79.98 %; over ABS on 11 levels: pseudo bootstrap wins 9",
    "mnist": "dense 98.516 %; over ABS on 11 levels: pseudo bootstrap wins 10; up to 95 % above dense, at 99 % -0.33",
    "imagenet100": "dense 72.682 %; over ABS on 6 levels: pseudo bootstrap wins 6",
}


class MachineError(ValueError):
    """A device that was asked for and is not there."""


@dataclass(frozen=True)
class Machine:
    """Where an experiment runs: nothing of it changes what a result is of."""

    data: Path | None = None
    device: str | None = None
    executor: str | None = None
    address: str | None = None
    workers: int = 0  # processes on a CPU; 0: one a processor
    piece: int = 0  # networks trained between two savings; 0: what takes some minutes
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "piece"):
            if getattr(self, name) < 0:
                raise MachineError(f"--{name} {getattr(self, name)}: give 1 or more, or 0 to leave it open")
        if self.minutes is not None and not self.minutes >= 0:
            raise MachineError(f"--minutes {self.minutes}: give 0 or more")

    def torch_device(self) -> torch.device:
        """The device asked for, or a GPU where there is one."""
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        kind, _, number = name.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
            raise MachineError(f"--device {name}: give cpu or cuda")
        if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
            raise MachineError(f"--device {name}: there is no such GPU here, or torch is without CUDA; give cpu")
        return torch.device(name)


@dataclass(frozen=True)
class Run:
    """An experiment on a machine, until the deadline; all of it can be sent to another process."""

    settings: Settings
    out: Path
    machine: Machine
    deadline: float

    def everything(self) -> bool:
        """Run what is missing; returns whether time was enough. On a CPU processes share the seeds."""
        raw = load(self.settings.experiment, self.machine.data, side=self.settings.side)
        RecordFolder(self.out, self.settings, raw.source).read()  # a damaged record should show before the work begins
        seeds = self.settings.seeds
        alone = self.machine.executor is not None or self.machine.torch_device().type != "cpu"
        workers = 1 if alone else min(self.machine.workers or cpus(), len(seeds))
        if workers == 1:
            return self.some(seeds, raw, workers, _say)
        del raw  # each process reads its own
        parts = [seeds[first::workers] for first in range(workers)]
        with progress_bar(total=0, show=False) as bar:
            return all(each(partial(_worker, self, workers), parts, workers, bar))

    def some(self, seeds: Sequence[int], raw: Raw, workers: int, say: Tick) -> bool:
        """Run what is missing of these seeds in this process, one of so many."""
        device, machine = self.machine.torch_device(), self.machine
        how = {"progress": sys.stderr.isatty() and workers == 1}
        if machine.executor:
            how |= {"executor": machine.executor, "address": machine.address}
        networks = Networks.of(self.settings, raw, device, **how)
        results = RecordFolder(self.out, self.settings, raw.source)
        protocol = Protocol(
            networks,
            results,
            Cache(results.folder / "networks", networks.make),
            seeds,
            machine.piece,
            max(1, networks.most // workers),
            self.deadline,
            _environment(device),
            say,
        )
        try:
            protocol.run()
        except Over:
            return False
        return True


def _worker(run: Run, workers: int, seeds: Sequence[int], tick: Tick) -> bool:
    """The part of one process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, cpus() // workers))
    raw = load(run.settings.experiment, run.machine.data, side=run.settings.side)

    def say(text: str) -> None:
        tick(text)  # which ends this process where another one has failed
        _say(text)

    return run.some(seeds, raw, workers, say)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _end_with_parent() -> None:
    """It may be killed without a word, and then nobody waits for this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def reproduce(settings: Settings, out: Path, machine: Machine) -> str:
    """Run what is missing of an experiment; returns the summary of all that is finished."""
    methods_of(settings)
    machine.torch_device()
    deadline = math.inf if machine.minutes is None else time.monotonic() + 60 * machine.minutes
    complete = Run(settings, out, machine, deadline).everything()
    rest = "" if complete else f"\nstopped after {machine.minutes:g} minutes, as asked: the same command goes on"
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


def needs(error: ImportError) -> str:
    """What is missing for tables and figures, which a machine that only trains does not need."""
    name = (error.name or str(error)).split(".")[0]
    return f"tables and figures need {name}: pip install 'prunewald[demo]'"


def describe(folder: str | Path) -> str:
    """The table of a results folder, with what the paper says above it."""
    experiment, records = experiment_of(folder), read_records(folder)
    found = summary.lines(records)
    dense = {record.seed: 100 * record.dense for record in records}
    return "\n".join(
        [
            f"{experiment}: {len(dense)} networks, dense {sum(dense.values()) / max(len(dense), 1):.2f} %",
            f"data: {data_of(folder)}",
            f"the paper: {PAPER_SAYS[experiment]}",
            "",
            summary.table(found),
            "",
            "levels on which the mean lies above ABS's (no test):",
            summary.wins_text(found),
        ]
    )


def pages(folder: str | Path) -> list[Path]:
    """Write table, numbers and figure of a results folder beside its records."""
    root, experiment, records = Path(folder), experiment_of(folder), read_records(folder)
    found = summary.lines(records)
    texts = {
        "table.txt": describe(folder) + "\n",
        "lines.json": json.dumps(summary.as_json(found), indent=1) + "\n",
    }
    for name, text in texts.items():
        with replacing(root / name) as file:
            file.write(text.encode())
    seeds = len({record.seed for record in records})
    title = (
        f"{data_of(folder)}: pruned and retrained, {seeds} networks, 95 % intervals\npaper: {PAPER_SAYS[experiment]}"
    )
    # As the paper draws them: the third in basis points, the fourth as lines.
    drawn = summary.figure(found, title, basis_points=experiment == "mnist", lines=experiment == "imagenet100")
    write(drawn, root / "figure.png")
    return [root / name for name in (*texts, "figure.png")]


def _environment(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "prunewald": pw.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
    }
