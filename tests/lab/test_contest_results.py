"""Committed tables of the contest come from its committed records."""

import shutil
from pathlib import Path

import pytest
from benchmarks.lambda_star import table

from prunewald.cli import main
from prunewald.lab.contest_pages import contest_pages

PLACE = Path(__file__).parents[2] / "results/contest"
NETWORKS = sorted(path.parent for path in PLACE.glob("*/records.tar.xz"))
FEWER = ("platon@lamp", "movement@lamp", "taylor@lamp", "snip@lamp", "pseudo_", "fisher_")  # the rest have three tries

pytestmark = pytest.mark.skipif(not PLACE.exists(), reason="results/ is not part of a source distribution")


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def imported(places: list[Path], out: Path) -> list[Path]:
    for place in places:
        assert main(["results", "import", str(place / "records.tar.xz"), str(out)]) == 0
    return [out / f"{place.name}-contest" for place in places]


def test_committed_tables_are_of_the_committed_records(tmp_path: Path) -> None:
    folders = imported(NETWORKS, tmp_path)
    contest_pages(tmp_path)
    assert len(folders) >= 4
    for place, folder in zip(NETWORKS, folders, strict=True):
        assert text(folder / "contest.txt") == text(place / "contest.txt")
    assert text(tmp_path / "bar.txt") == text(PLACE / "bar.txt")


def test_the_table_of_three_tries_is_of_the_rows_that_have_them(tmp_path: Path) -> None:
    place = PLACE / "fashion-mnist"
    (folder,) = imported([place], tmp_path)
    for row in FEWER:
        for own in (folder / "records").glob(f"{row}*"):
            shutil.rmtree(own)
    contest_pages(tmp_path)
    assert text(folder / "contest.txt") == text(place / "three-tries.txt")
    assert text(tmp_path / "bar.txt") == text(place / "three-tries-bar.txt")


def test_the_table_of_lambda_is_of_the_committed_records() -> None:
    assert table(PLACE) + "\n" == text(PLACE / "lambda.txt")
