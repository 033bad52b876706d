"""Committed tables and figures come from committed records."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from prunewald.cli import main
from prunewald.lab.pages import PAPER_SAYS, describe, pages
from prunewald.lab.records import RecordFolder
from prunewald.lab.settings import EXPERIMENTS, settings
from tests.lab.test_records import ONE

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


@pytest.mark.skipif(not COMMITTED, reason="results/ is not part of a source distribution")
def test_every_difference_in_the_docs_is_in_a_committed_table() -> None:
    """Differences with an interval: those of the experiments, as the tables spell them."""
    docs = Path(__file__).parents[2] / "docs"
    tables = "".join(path.with_name("table.txt").read_text(encoding="utf-8") for path in COMMITTED)
    results = (docs / "reproduction.md").read_text(encoding="utf-8").partition("## Results")[2]
    spelled = re.findall(r"[+-]\d+\.\d+ \[[+-]\d+\.\d+, [+-]\d+\.\d+\](?! \(not of a table)", results)
    assert len(spelled) > 30
    assert [one for one in spelled if one not in tables] == []


def test_networks_at_chance_are_pointed_out(tmp_path: Path) -> None:
    results = RecordFolder(tmp_path, settings("imagenet100"), "pictures")
    for seed, dense in ((0, 0.01), (1, 0.012)):
        results.write(replace(ONE, seed=seed, dense=dense))
    assert "near chance (1 %): nothing below tells" in describe(results.folder)
    results.write(replace(ONE, seed=2, dense=0.1))
    assert "near chance" not in describe(results.folder)


def test_where_rows_have_allocations_there_is_a_figure_of_them(tmp_path: Path) -> None:
    results = RecordFolder(tmp_path, settings("mnist"), "digits")
    for seed in (0, 1):
        for row in ("dense", "abs", "moment:1"):
            results.write(replace(ONE, seed=seed, row=row, retrained=0.7 + 0.01 * seed * len(row)))
    assert [path.name for path in pages(results.folder)] == ["table.txt", "lines.json", "figure.png", "page.html"]
    for seed in (0, 1):
        for row in ("abs@lamp", "moment:1@lamp"):
            results.write(replace(ONE, seed=seed, row=row, retrained=0.7 + 0.01 * seed * len(row)))
    written = [path.name for path in pages(results.folder)]
    assert written == ["table.txt", "lines.json", "figure.png", "apart.png", "page.html"]
    assert (results.folder / "apart.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_paper_says_of_every_experiment() -> None:
    assert set(PAPER_SAYS) == set(EXPERIMENTS)
