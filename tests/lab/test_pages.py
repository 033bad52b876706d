"""Committed tables and figures come from committed records."""

from pathlib import Path

import pytest

from prunewald.cli import main
from prunewald.lab.pages import PAPER_SAYS, describe
from prunewald.lab.settings import EXPERIMENTS

COMMITTED = sorted((Path(__file__).parents[2] / "results/reproduction").glob("*/records.tar.xz"))


@pytest.mark.slow
@pytest.mark.skipif(not COMMITTED, reason="results/ is not part of a source distribution")
@pytest.mark.parametrize("archive", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_tables_are_of_the_committed_records(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["results", "import", str(archive), str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    capsys.readouterr()
    assert main(["results", "table", str(folder)]) == 0
    assert capsys.readouterr().out == archive.with_name("table.txt").read_text(encoding="utf-8")
    assert describe(folder).startswith(folder.name.rpartition("-")[0])


def test_what_the_paper_says_of_every_experiment() -> None:
    assert set(PAPER_SAYS) == set(EXPERIMENTS)
