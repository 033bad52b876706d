"""Committed tables of the contest come from its committed records."""

import shutil
from pathlib import Path

import pytest

from prunewald.cli import main
from prunewald.lab.contest_pages import contest_pages

PLACE = Path(__file__).parents[2] / "results/contest/fashion-mnist"
pytestmark = pytest.mark.skipif(not PLACE.exists(), reason="results/ is not part of a source distribution")
ONE_TRY = ("platon@lamp", "movement@lamp", "taylor@lamp")  # the rest have all three


def folder_of(out: Path) -> Path:
    assert main(["results", "import", str(PLACE / "records.tar.xz"), str(out)]) == 0
    (folder,) = out.iterdir()
    return folder


@pytest.mark.parametrize("table", ["three-tries", "first-try"])
def test_committed_tables_are_of_the_committed_records(table: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    if table == "three-tries":
        for row in ONE_TRY:
            for own in (folder / "records").glob(f"{row}*"):
                shutil.rmtree(own)
    contest_pages(tmp_path)
    assert (folder / "contest.txt").read_text(encoding="utf-8") == (PLACE / f"{table}.txt").read_text(encoding="utf-8")
    bar = (tmp_path / "bar.txt").read_text(encoding="utf-8")
    assert bar == (PLACE / f"{table}-bar.txt").read_text(encoding="utf-8")
