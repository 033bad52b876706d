"""The committed tables of coverage, line by line, against the warnings of the code and the counts in the docs."""

import csv
import math
import re
from pathlib import Path

from prunewald.uncertainty import batch_means

RESULTS = Path(__file__).parents[2] / "results" / "coverage"
DOCS = (Path(__file__).parents[2] / "docs" / "uncertainty.md").read_text()
OPTIMIZERS = ("SGD", "momentum", "Adam", "RMSprop", "AdamW")
SHOWN = ("coverage", "zeros called", "false discoveries")
TOO_LARGE = {"0.5", "1.0"}  # steps of a logistic regression whose average is itself off the optimum
LOW, HIGH = 0.92, 0.97
NOISE = 2 * math.sqrt(0.92 * 0.08 / 4000)  # two standard errors of a coverage of 200 draws of 20 weights


def table(name):
    with (RESULTS / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def coverage(row):
    return float(row["coverage"])


def warned(row):
    return row["warned"] == "True"


EVERY = table("coverage.csv")
ALL = table("batch_means.csv")
ROWS = [row for row in ALL if row["step size"] not in TOO_LARGE]
WATCHED = [row for row in EVERY if row["estimator"].startswith("BatchMeans")]


def test_the_table_has_the_settings_that_are_promised():
    assert {row["model"] for row in ROWS} == {"linear", "logistic"}
    assert {row["inputs"] for row in ROWS} == {"independent", "neighbours 0.5", "neighbours 0.8", "all 0.5"}
    assert {row["epochs"] for row in ROWS} == {"1", "2", "4"}
    assert len(ROWS) == 240
    assert {int(row["draws"]) for row in WATCHED} == {200}


def test_every_warning_was_of_the_limits_that_the_code_has():
    for row in ALL:
        doubling, large = float(row["doubling"]), float(row["offset"]) > batch_means._TOO_LARGE
        assert warned(row) == (doubling > batch_means._TOO_SHORT or doubling < batch_means._TOO_EVEN or large), row


def test_a_warning_comes_below_and_never_within_beyond_the_noise_of_the_table():
    for row in [*ALL, *WATCHED]:
        assert coverage(row) <= HIGH, row
        assert warned(row) or coverage(row) >= LOW, row
        assert not warned(row) or coverage(row) < LOW + NOISE, row


def test_the_docs_count_as_the_table_does():
    for epochs in ("1", "2", "4"):
        own = [row for row in ROWS if row["epochs"] == epochs]
        below, within = ([r for r in own if (coverage(r) < LOW) == low] for low in (True, False))
        line = next(line for line in DOCS.splitlines() if line.startswith(f"| {epochs} | {len(own)} |"))
        cells = [cell.strip(" *").split(" ")[0] for cell in line.strip("|").split("|")]
        old = sum(LOW <= float(row["before"]) <= HIGH for row in own)
        assert cells[2:] == [str(n) for n in (len(within), sum(map(warned, within)), len(below), len(below), old)]
    large = [row for row in ALL if row["step size"] in TOO_LARGE]
    below, within = ([r for r in large if (coverage(r) < LOW) == low] for low in (True, False))
    assert all(map(warned, below))
    assert f"in {len(below)} of {len(large)} settings below .92, and each of these is warned of" in DOCS
    assert [coverage(row) for row in within if warned(row)] == [0.925]
    assert f"of the {len(within)} within one is, at .925" in DOCS


def test_every_estimator_was_measured():
    assert {row["optimizer"] for row in EVERY} == {*OPTIMIZERS, "optimum"}
    assert {(row["estimator"], row["draws"]) for row in EVERY if row["draws"] != "200"} == {
        (f'Bootstrap(replicas=50, start="{start}")', "40") for start in ("same", "independent")
    }
    assert len(EVERY) == 117


def test_a_standard_error_at_the_optimum_finds_half_of_the_false_discoveries_that_are_allowed():
    """Benjamini & Hochberg: the level, 0.1, times the share of the weights that are zero."""
    rows = [row for row in EVERY if row["steps"] == "none" and row["estimator"] in ("InverseFisher", "Sandwich")]
    assert len(rows) == 8
    assert all(0.035 < float(row["false discoveries"]) < 0.065 for row in rows)


def test_the_docs_show_by_optimizer_what_the_table_has():
    name, shown = "", 0
    for line in DOCS.splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        if len(cells) != 10:
            continue
        name = cells[0].split("(")[0] or name
        for optimizer, cell in zip(OPTIMIZERS, cells[3:8], strict=True):
            if re.fullmatch(r"[.\d]+( / [.\d]+)+", cell):
                assert cell in figures(name, optimizer, cells[2]), line
                shown += 1
    assert shown == 53


def figures(name, optimizer, steps):
    """The figures of an estimator in the words of the docs, whatever its settings; of independent inputs."""
    own = [r for r in EVERY if (r["optimizer"], r["steps"], r["inputs"]) == (optimizer, steps, "independent")]
    own = [r for r in own if r["estimator"].split("(")[0] == name]
    return [" / ".join(f"{float(r[c]):.2f}".removeprefix("0") for c in SHOWN) for r in own]
