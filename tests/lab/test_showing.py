"""`pw.page`: of what, where to, and what it refuses; the sections that records fill."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab import summary
from prunewald.lab.page_sections import environments, network
from prunewald.lab.records import RecordFolder, ResultsError
from prunewald.lab.settings import settings
from prunewald.lab.showing import of_folder
from prunewald.util import colours
from tests.lab.test_records import ONE
from tests.web.helpers import trained
from tests.web.test_drafting import check, embedded_data

pytestmark = pytest.mark.usefixtures("one_thread")


def results(out: Path, *rows: str, seeds: tuple[int, ...] = (0, 1, 2), name: str = "mnist") -> Path:
    """A folder of records that differ from each other."""
    folder = RecordFolder(out, settings(name), "digits")
    for seed in seeds:
        for at, row in enumerate(rows):
            for level in (0.5, 0.9) if row != "dense" else (0.0,):
                retrained = 0.9 - 0.2 * level + 0.01 * at * (seed + 1)
                folder.write(replace(ONE, seed=seed, row=row, level=level, retrained=retrained))
    return folder.folder


def test_a_folder_of_results_is_its_accuracies(tmp_path: Path) -> None:
    folder = results(tmp_path, "dense", "abs", "abs@lamp", "moment:1@lamp")
    path = pw.page(folder)
    assert path == folder / "page.html"
    data = embedded_data(path.read_text(encoding="utf-8"))
    check(data)
    assert {name for name, section in data.items() if "why" in section} == {"layers", "planes", "file", "history"}
    ((own,),) = [data["accuracy"]["networks"]]
    assert [(one["criterion"], one["allocation"]) for one in own["methods"]] == [
        ("ABS", ""),
        ("ABS", "lamp"),
        ("M&U second moment λ*=1", "lamp"),
    ]
    assert own["dense"] == pytest.approx(ONE.dense)
    assert any("not pruned, as many extra epochs" in line for line in own["lines"])


def test_its_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    folder = results(tmp_path, "dense", "abs", "moment:1")
    records = RecordFolder(tmp_path, settings("mnist"), "digits").read()
    lines = {(line.row, line.level): line for line in summary.lines(records)}
    data = of_folder(folder)["accuracy"]["networks"][0]
    method = data["methods"][1]
    own = method["series"]["retrained"]
    assert own["levels"] == [0.5, 0.9]
    means = [lines["moment:1", level].retrained for level in own["levels"]]
    assert [100 * mean for mean in own["mean"]] == pytest.approx(means)
    gain = method["gain"]["retrained"]
    known = [lines["moment:1", level].gain for level in gain["levels"]]
    assert [100 * mean for mean in gain["mean"]] == pytest.approx([one.mean for one in known if one])
    assert [100 * low for low in gain["low"]] == pytest.approx([one.low for one in known if one])
    assert (method["over"], gain["n"]) == ("ABS", [3, 3])


def test_a_folder_of_folders_has_all_networks(tmp_path: Path) -> None:
    results(tmp_path, "abs", "moment:1")
    results(tmp_path, "abs", "moment:1", name="fashion-mnist")
    data = of_folder(tmp_path)
    check(data)
    assert len(data["accuracy"]["networks"]) == 2
    assert data["title"] == tmp_path.name


def test_the_contest_shows_the_tries_that_were_chosen(tmp_path: Path) -> None:
    rows = ("abs", "abs,lr=0.3", "abs@lamp", "abs@lamp,lr=0.3", "moment:1@lamp", "moment:0.3@lamp")
    folder = results(tmp_path, *rows)
    data = of_folder(folder)
    check(data)
    (own,) = data["accuracy"]["networks"]
    methods = {one["label"]: one for one in own["methods"]}
    assert set(methods) == {"ABS", "ABS @lamp", "M&U second moment λ*=1 @lamp"}
    assert methods["ABS @lamp"]["over"] == "ABS"
    assert methods["M&U second moment λ*=1 @lamp"]["over"] == "ABS with the same counts"
    assert methods["ABS @lamp"]["gain"]["retrained"]["levels"] == [0.5, 0.9]


def test_one_colour_a_method_and_one_dash_an_allocation(tmp_path: Path) -> None:
    records = RecordFolder(tmp_path, settings("mnist"), "digits")
    results(tmp_path, "abs", "moment:1", "moment:1@lamp", "moment:10@lamp")
    own = network("mnist", settings("mnist"), "digits", records.read())["methods"]
    looks = {one["label"]: one["look"] for one in own}
    second = [look for label, look in looks.items() if "second moment" in label]
    assert {look["color"] for look in second} == {colours.METHODS["moment"]}
    assert looks["ABS"]["dark"] == colours.PALE_INK
    assert len({(look["color"], look["mark"], look["fill"]) for look in looks.values()}) == len(looks)


def test_environments_are_told_once() -> None:
    found = environments([{"torch": "2.13", "seconds": at / 2} for at in range(9)] + [{"torch": "2.4"}, {}])
    assert found == [{"name": "environment", "rows": [["torch", "2.13, 2.4"], ["seconds", "0 to 4"]]}]
    assert environments([{}]) == []


def test_where_nothing_is_pruned_yet_it_says_so(tmp_path: Path) -> None:
    data = of_folder(results(tmp_path, "dense"))
    check(data)
    assert "no pruned network" in data["accuracy"]["why"]
    with pytest.raises(ResultsError, match="no records"):
        of_folder(results(tmp_path / "empty"))


def test_a_pruner_s_page_goes_where_it_is_told(tmp_path: Path) -> None:
    pruner = trained()
    path = pw.page(pruner, tmp_path / "run.html", title="mine")
    data = embedded_data(path.read_text(encoding="utf-8"))
    assert data["title"] == "mine"
    assert ["torch", torch.__version__] in data["settings"]["groups"][-1]["rows"]
    with pytest.raises(ValueError, match=r"page\(pruner, 'run.html'\)"):
        pw.page(pruner)


def test_a_packed_file_s_page_is_beside_it(tmp_path: Path) -> None:
    pruner = trained()
    pruner.prune(0.9)
    pw.save(pruner, tmp_path / "model.pw")
    assert pw.page(str(tmp_path / "model.pw")) == tmp_path / "model.html"


def test_what_is_no_source_is_refused_with_what_is_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing packed")
    sources: list[tuple[Any, type[Exception], str]] = [
        (nn.Linear(2, 2), TypeError, r"Linear.*a packed file"),
        (tmp_path / "none", FileNotFoundError, r"none'.*a Pruner, a packed file"),
        (tmp_path, ResultsError, r"no folder of results.*settings\.json.*a packed file"),
        (tmp_path / "notes.txt", pw.PackedFileError, r"notes\.txt.*give a Pruner"),
    ]
    for source, error, said in sources:
        with pytest.raises(error, match=said):
            pw.page(source)
    (tmp_path / "results.json").write_text('{"settings": {}}')
    with pytest.raises(ResultsError, match=r"results\.json.*no results\.json of a demo"):
        pw.page(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "results.json"}


def test_what_is_for_a_pruner_is_refused_elsewhere(tmp_path: Path) -> None:
    folder = results(tmp_path, "abs")
    with pytest.raises(ValueError, match=r"inputs=.*page of a Pruner.*leave it out"):
        pw.page(folder, inputs=3)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    pruner = trained(steps=2)
    with pytest.raises(FileExistsError, match=r"is a folder.*another name"):
        pw.page(pruner, tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        pw.page(pruner, tmp_path / "no" / "page.html")
    (tmp_path / "page.html").write_text("before")
    with pytest.raises(ValueError, match="is empty"):
        pw.page(pruner, tmp_path / "page.html", accuracies={})
    assert (tmp_path / "page.html").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


COMMITTED = Path(__file__).parents[2] / "results/demo"


@pytest.mark.skipif(not COMMITTED.exists(), reason="results/ is not part of a source distribution")
def test_of_a_demo_s_numbers_alone_there_is_a_page(tmp_path: Path) -> None:
    data = embedded_data(pw.page(COMMITTED, tmp_path / "page.html").read_text(encoding="utf-8"))
    check(data)
    assert len(data["accuracy"]["networks"][0]["methods"]) == 4
    assert data["accuracy"]["networks"][0]["methods"][0]["series"]["retrained"]["n"] == [6, 6, 6, 6]
