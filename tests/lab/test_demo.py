import json
from pathlib import Path

import pytest
import torch

import prunewald as pw
from prunewald.lab.architectures import PaperCNN
from prunewald.lab.data import fashion_mnist
from prunewald.lab.demo import Demo, DemoResult, farewell, run
from prunewald.lab.loop import accuracy
from prunewald.lab.trial import METHODS, MOMENT, ticks


def tiny(out: Path, workers: int = 1) -> Demo:
    return Demo(seeds=2, epochs=2, retrain_epochs=1, levels=(0.5, 0.9), out=out, workers=workers)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return run(tiny(tmp_path_factory.mktemp("demo") / "new" / "folder"))


def test_networks_learn_and_pruning_to_half_keeps_it(result: DemoResult) -> None:
    for trial in result.trials:
        assert trial.dense > 0.55
        assert trial.control > 0.6
        cells = {(cell.method, cell.level): cell for cell in trial.cells}
        assert list(cells) == [(method, level) for level in (0.5, 0.9) for method in METHODS]
        for (_, level), cell in cells.items():
            assert cell.sparsity == pytest.approx(level, abs=1e-3)
            assert 0.05 < cell.pruned < 0.85
            assert cell.retrained > (0.45 if level == 0.5 else 0.05)
            assert cell.validation == pytest.approx(cell.retrained, abs=0.1)


def test_methods_prune_differently(result: DemoResult) -> None:
    pruned = [tuple(cell.pruned for cell in trial.cells if cell.level == 0.5) for trial in result.trials]
    assert all(len(set(cells)) == 3 for cells in pruned)


def test_table_has_every_method_and_level(result: DemoResult) -> None:
    text = str(result)
    lines = text.splitlines()
    assert all(len(line) <= 110 for line in lines)
    dense = 100 * sum(trial.dense for trial in result.trials) / 2
    assert float(lines[1].split()[1].rstrip(";")) == pytest.approx(dense, abs=0.006)
    for method in METHODS:
        rows = [line for line in lines if method in line and "criterion" not in line]
        assert len([line for line in rows if f"  {method}  " in line]) == 2
    assert sum("[" in line for line in lines) == 5  # the control, and two methods over ABS at two levels
    assert "50 %" in text
    assert "90 %" in text


def test_files_are_there_and_no_others(result: DemoResult) -> None:
    names = {path.name for path in result.config.out.iterdir()}
    assert names == {"figure.png", "results.json", "model.pw"}
    assert result.figure.read_bytes().startswith(b"\x89PNG")
    assert result.figure.stat().st_size > 10_000


def test_numbers_are_the_results(result: DemoResult) -> None:
    stored = json.loads(result.numbers.read_text())
    assert stored["config"]["seeds"] == 2
    assert stored["environment"]["torch"] == torch.__version__
    assert stored["environment"]["threads"] == 1
    assert [trial["dense"] for trial in stored["trials"]] == [trial.dense for trial in result.trials]
    assert len(stored["trials"][1]["cells"]) == len(stored["summary"]) == 6
    row = stored["summary"][1]
    gaps = [trial.cells[1].retrained - trial.cells[0].retrained for trial in result.trials]
    assert row["retrained_gain"]["mean"] == pytest.approx(100 * sum(gaps) / 2)


def test_model_is_the_retrained_ninety_percent_network(result: DemoResult) -> None:
    model = pw.load(result.model, into=PaperCNN())
    cell = next(cell for cell in result.trials[0].cells if (cell.method, cell.level) == (MOMENT, 0.9))
    assert accuracy(model, *fashion_mnist(0).test) == cell.retrained
    assert (model.fc1.weight == 0).float().mean() == pytest.approx(0.9, abs=1e-3)
    text = farewell(result)
    assert f"{cell.retrained:.2%}" in text
    assert f"{result.model.stat().st_size:,} bytes" in text
    for path in (result.figure, result.numbers, result.model):
        assert str(path) in text


def test_number_of_processes_changes_nothing(result: DemoResult, tmp_path: Path) -> None:
    assert run(tiny(tmp_path, workers=2)).trials == result.trials


def test_the_callers_random_numbers_and_threads_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected, threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(5)
    run(Demo(seeds=2, epochs=1, retrain_epochs=1, levels=(0.5,), out=tmp_path, workers=1))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_ticks_count_every_epoch() -> None:
    assert ticks(Demo(epochs=7, retrain_epochs=2, levels=(0.5, 0.9))) == 7 + 2 * (2 * 3 + 1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"seeds": 1}, "seeds 1: give 2 or more"),
        ({"epochs": 0}, "epochs 0: give 1 or more"),
        ({"retrain_epochs": -1}, "retrain-epochs -1: give 1 or more"),
        ({"levels": ()}, r"levels \(\): give at least one"),
        ({"levels": (0.5, 90.0)}, "level 90: give a fraction"),
        ({"levels": (float("nan"),)}, "level nan: give a fraction"),
        ({"levels": (0.5, 0.5)}, "give each level once"),
        ({"workers": -2}, "workers -2"),
    ],
)
def test_bad_settings_name_the_value(bad: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Demo(**bad)  # type: ignore[arg-type]
