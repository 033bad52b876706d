"""The committed tables of coverage, line by line, against the warnings of the code and the counts in the docs."""

import csv
import math
from pathlib import Path

from prunewald.uncertainty import batch_means

RESULTS = Path(__file__).parents[2] / "results" / "coverage"
TOO_LARGE = {"0.5", "1.0"}  # steps of a logistic regression whose average is itself off the optimum: not warned of
LOW, HIGH = 0.92, 0.97
NOISE = 2 * math.sqrt(0.92 * 0.08 / 4000)  # two standard errors of a coverage of 200 draws of 20 weights


def table(name):
    with (RESULTS / name).open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def coverage(row):
    return float(row["coverage"])


def warned(row):
    return row["warned"] == "True"


ALL = table("batch_means.csv")
ROWS = [row for row in ALL if row["step size"] not in TOO_LARGE]
WATCHED = [row for row in table("coverage.csv") if row["estimator"].startswith("BatchMeans")]


def test_the_table_has_the_settings_that_are_promised():
    assert {row["model"] for row in ROWS} == {"linear", "logistic"}
    assert {row["inputs"] for row in ROWS} == {"independent", "neighbours 0.5", "neighbours 0.8", "all 0.5"}
    assert {row["epochs"] for row in ROWS} == {"1", "2", "4"}
    assert len(ROWS) == 240
    assert {int(row["draws"]) for row in WATCHED} == {200}


def test_every_warning_was_of_the_limits_that_the_code_has():
    for row in ALL:
        doubling = float(row["doubling"])
        assert warned(row) == (doubling > batch_means._TOO_SHORT or doubling < batch_means._TOO_EVEN), row


def test_a_warning_comes_below_and_never_within_beyond_the_noise_of_the_table():
    for row in [*ROWS, *WATCHED]:
        assert coverage(row) <= HIGH, row
        assert warned(row) or coverage(row) >= LOW, row
        assert not warned(row) or coverage(row) < LOW + NOISE, row


def test_the_docs_count_as_the_table_does():
    docs = (Path(__file__).parents[2] / "docs" / "uncertainty.md").read_text()
    for epochs in ("1", "2", "4"):
        own = [row for row in ROWS if row["epochs"] == epochs]
        below, within = ([r for r in own if (coverage(r) < LOW) == low] for low in (True, False))
        line = next(line for line in docs.splitlines() if line.startswith(f"| {epochs} | {len(own)} |"))
        cells = [cell.strip(" *").split(" ")[0] for cell in line.strip("|").split("|")]
        old = sum(LOW <= float(row["before"]) <= HIGH for row in own)
        assert cells[2:] == [str(n) for n in (len(within), sum(map(warned, within)), len(below), len(below), old)]
    large = [row for row in ALL if row["step size"] in TOO_LARGE]
    missed = [row for row in large if coverage(row) < LOW and not warned(row)]
    assert f"in {len(missed)} of {len(large)} settings below .92 without a warning" in docs
