import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import prunewald as pw
from prunewald.lab import demo as module
from prunewald.lab import summary
from prunewald.lab.architectures import PaperCNN
from prunewald.lab.demo import Demo, demo, epochs_of, kept_key
from prunewald.lab.machine import MachineError
from prunewald.lab.methods import parse
from prunewald.lab.records import Record
from prunewald.lab.settings import Settings, SettingsError, settings
from prunewald.storage import inspect
from tests.lab.helpers import numbers
from tests.web.test_drafting import check, embedded_data

COMMITTED = Path(__file__).parents[2] / "results/demo/results.json"
FILES = {"figure.png", "page.html", "results.json", "model.pw"}
ROWS = ("abs", "abs@lamp", "pseudo:0.01@lamp", "moment:1@lamp")


class Counter:
    """A progress bar that counts."""

    def __init__(self) -> None:
        self.ticks, self.said = 0, set[str]()

    def update(self, n: int = 1) -> None:
        self.ticks += n

    def set_description_str(self, desc: str, refresh: bool = True) -> None:
        self.said.add(desc)

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, *error: object) -> None: ...


class Ran(NamedTuple):
    """A demo, the bar it moved, and torch's threads and random numbers before and after it."""

    result: Demo
    bar: Counter
    before: tuple[int, Any]
    after: tuple[int, Any]


def tiny() -> Settings:
    return settings("fashion-mnist", "demo", repetitions=2, epochs=2, retrain_epochs=1, levels=(0.5, 0.9), images=1000)


def outside() -> tuple[int, Any]:
    return torch.get_num_threads(), torch.get_rng_state()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    bar, before = Counter(), outside()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "progress_bar", lambda total, unit: bar)
        patch.setenv("PRUNEWALD_DATA", "/no/such/folder")  # the embedded part is taken, whatever this says
        result = demo(tiny(), tmp_path_factory.mktemp("demo") / "new" / "folder", workers=1)
    return Ran(result, bar, before, outside())


@pytest.fixture
def result(ran: Ran) -> Demo:
    return ran.result


def test_the_preset_is_what_it_was_tuned_for() -> None:
    preset = settings("fashion-mnist", "demo")
    assert (preset.repetitions, preset.epochs, preset.retrain_epochs, preset.last) == (6, 30, 5, 200)
    assert (preset.levels, preset.dropout) == ((0.5, 0.8, 0.9, 0.95), 0.1)
    assert preset.rows == ROWS
    assert kept_key(preset).level == 0.9


def test_every_method_level_and_network_has_a_record(result: Demo) -> None:
    found = {(record.row, record.level, record.seed): record for record in result.records}
    pruned = {(row, level, seed) for row in ROWS for level in (0.5, 0.9) for seed in (0, 1)}
    assert found.keys() == pruned | {("dense", 0.0, 0), ("dense", 0.0, 1)}
    assert all(record.dense > 0.3 for record in result.records)
    assert all(found[key].sparsity == pytest.approx(key[1], abs=1e-3) for key in pruned)
    assert len({found[row, 0.5, 0].pruned for row in ROWS}) == 4


def test_it_prints_a_short_table_and_where_the_files_are(result: Demo) -> None:
    text = str(result)
    assert all(len(line) <= 120 for line in text.splitlines() if "model.pw" not in line)
    dense = 50 * sum(record.dense for record in result.records if record.row == "dense")
    assert f"Dense {dense:.2f}; after as many extra epochs" in text
    for label in (
        "  ABS  ",
        "  ABS @lamp  ",
        "  M&U pseudo bootstrap λ*=0.01 @lamp  ",
        "  M&U second moment λ*=1 @lamp  ",
    ):
        assert text.count(label) == 2
    for name in FILES:
        assert str(result.out / name) in text


def test_files_are_there_and_no_others(result: Demo) -> None:
    assert {path.name for path in result.out.iterdir()} == FILES
    figure = (result.out / "figure.png").read_bytes()
    assert figure.startswith(b"\x89PNG")
    assert len(figure) > 10_000


def test_numbers_are_the_results(result: Demo) -> None:
    stored = json.loads((result.out / "results.json").read_text())
    assert stored["settings"]["repetitions"] == 2
    assert stored["data"] == "embedded part of Fashion-MNIST (6,000 + 2,000 images)"
    assert stored["environment"]["torch"] == torch.__version__
    assert (stored["environment"]["threads"], stored["environment"]["processes"]) == (1, 1)
    assert [record["retrained"] for record in stored["records"]] == [record.retrained for record in result.records]
    assert {(line["row"], line["level"]) for line in stored["summary"]} == {(r.row, r.level) for r in result.records}


def test_the_page_shows_the_network_that_is_saved(result: Demo) -> None:
    data = embedded_data((result.out / "page.html").read_text(encoding="utf-8"))
    check(data)
    assert {name for name, section in data.items() if "why" in section} == {"history"}
    assert [method["label"] for method in data["accuracy"]["networks"][0]["methods"]] == [parse(r).label for r in ROWS]
    assert data["planes"]["exact"]
    assert data["planes"]["kept"][90] == [row["kept"] for row in data["layers"]["rows"]]
    assert data["file"]["size"] == (result.out / "model.pw").stat().st_size
    names = [group["name"] for group in data["settings"]["groups"]]
    assert names == ["settings", "seeds", "environment", "Pruner"]


def test_model_is_the_retrained_network_of_the_record(result: Demo) -> None:
    (record,) = (record for record in result.records if record.key == kept_key(tiny()))
    assert (record.row, record.level, record.seed) == ("moment:1@lamp", 0.9, 0)
    assert result.loaded == record.retrained
    model = pw.load(result.out / "model.pw", into=PaperCNN())
    dense = [model.fc1.weight, model.fc2.weight, model.fc3.weight]
    assert sum(int((weight == 0).sum()) for weight in dense) == round(0.9 * 8928)
    assert (model.fc3.weight == 0).float().mean() < 0.8
    report = str(inspect(result.out / "model.pw").report)
    assert "sigma from SecondMoment()" in report
    size = (result.out / "model.pw").stat().st_size
    assert f"{record.retrained:.2%} of the test images right" in result.farewell()
    assert f"{size:,} bytes, {42_245 / size:.1f} times less" in result.farewell()


def test_the_bar_moves_on_after_every_epoch(ran: Ran) -> None:
    assert ran.bar.ticks == epochs_of(tiny()) == 2 * (2 + 1 * (1 + 2 * 4)) + 1
    assert ran.bar.said == {"training", "retraining"}


def test_the_callers_random_numbers_and_threads_are_left_alone(ran: Ran) -> None:
    assert ran.before[0] == ran.after[0]
    assert torch.equal(ran.before[1], ran.after[1])


@pytest.mark.slow
def test_a_second_demo_in_the_same_folder_in_more_processes_prints_the_same(result: Demo) -> None:
    before, table = (result.out / "model.pw").read_bytes(), str(result)
    again = demo(tiny(), result.out, workers=2)
    assert numbers(list(again.records)) == numbers(list(result.records))
    assert again.environment["processes"] == 2
    assert str(again) == table
    assert (result.out / "model.pw").read_bytes() == before
    assert {path.name for path in result.out.iterdir()} == FILES


def test_bad_values_are_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--seeds=1: give 2 or more"):
        demo(settings("fashion-mnist", "demo", repetitions=1), tmp_path / "out")
    with pytest.raises(MachineError, match="--workers=-2"):
        demo(tiny(), tmp_path / "out", workers=-2)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not COMMITTED.exists(), reason="results/ is not part of a source distribution")
def test_the_readmes_table_is_of_the_committed_numbers() -> None:
    stored = json.loads(COMMITTED.read_text())
    preset = settings("fashion-mnist", "demo")
    assert Settings(**stored["settings"]) == preset
    records = [Record(**record, environment={}) for record in stored["records"]]
    shown = summary.short_table(summary.lines(records)).splitlines()
    readme = (COMMITTED.parents[2] / "README.md").read_text(encoding="utf-8")
    block = readme[readme.index("pruned  criterion") :].split("```")[0].rstrip().splitlines()
    assert len(block) == 11
    assert [line for line in block if line not in shown] == []
