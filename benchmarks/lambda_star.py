"""Is lambda* 1 good enough, or should it be chosen? From the contest's records, in which M&U has it at 0.3, 1 and 3.

`python -m benchmarks.lambda_star results/contest` reads the archives of a folder. For each network and level it prints
the mean accuracy after retraining of each lambda*, and what choosing one network by network would change against always
1, by two ways to choose: the accuracy right after pruning (of the test images, since the records have no other: it sees
more than a user's choice could), or validation images after a retraining of each, which costs three of them.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

from prunewald.lab.records import Record, import_, read_records
from prunewald.statistics.differences import paired
from prunewald.util.tables import text_table

LAMBDAS = ("0.3", "1", "3")
HEAD = (
    *("network, level", "n", *(f"λ*={value}" for value in LAMBDAS), "best mean over 1"),
    *("chosen right after pruning, over 1", "chosen on validation images, over 1"),
)
Trial = dict[str, Record]  # the records of one network at one level, by lambda*


def trials(records: list[Record]) -> dict[float, list[Trial]]:
    """By level, the networks that have been pruned with every lambda*."""
    by_key = {(one.level, one.seed, one.row): one for one in records}
    found: dict[float, list[Trial]] = {}
    for level, seed in sorted({(level, seed) for level, seed, _ in by_key if level}):
        own = {value: by_key.get((level, seed, f"moment:{value}@lamp")) for value in LAMBDAS}
        there = {value: one for value, one in own.items() if one is not None}
        if len(there) == len(LAMBDAS):
            found.setdefault(level, []).append(there)
    return found


def over_one(some: list[Trial], by: Callable[[Record], float]) -> str:
    """What a choice by the highest of something gives after retraining, over lambda* 1."""
    chosen = [100 * max(trial.values(), key=by).retrained for trial in some]
    return str(paired(chosen, [100 * trial["1"].retrained for trial in some]))


def rows(archives: list[Path]) -> Iterator[list[str]]:
    """A row for each network and level."""
    for archive in archives:
        with tempfile.TemporaryDirectory() as place:
            records = read_records(import_(archive, place)[0])
        for level, some in trials(records).items():
            means = [100 * fmean(trial[value].retrained for trial in some) for value in LAMBDAS]
            yield [
                *(f"{archive.parent.name} {level:.0%}", str(len(some)), *(f"{mean:.2f}" for mean in means)),
                f"{max(means) - means[1]:+.2f}",
                over_one(some, lambda one: one.pruned),
                over_one(some, lambda one: one.validation),
            ]


def table(folder: Path) -> str:
    """All networks of a folder of archives."""
    return text_table(HEAD, list(rows(sorted(folder.glob("*/records.tar.xz")))))


if __name__ == "__main__":
    print(table(Path(sys.argv[1] if len(sys.argv) > 1 else "results/contest")))
