from pathlib import Path
from typing import Any

import pytest

from prunewald.lab.methods import methods_of
from prunewald.lab.settings import EXPERIMENTS, LEVELS, PAPER, PRESETS, Settings, SettingsError, read_toml, settings


def test_the_papers_settings() -> None:
    shown = {name: settings(name, "paper") for name in EXPERIMENTS}
    assert [s.repetitions for s in shown.values()] == [100, 20, 20, 10]
    assert [s.epochs for s in shown.values()][:3] == [500, 1000, 1000]
    assert [s.retrain_epochs for s in shown.values()] == [200, 200, 200, 40]
    assert [len(s.levels) for s in shown.values()] == [11, 11, 11, 6]
    assert [s.iterative for s in shown.values()] == [False, False, True, False]
    assert {s.last for s in shown.values()} == {200}
    assert shown["fashion-mnist"].replicas == shown["fashion-mnist"].bootstrap_repetitions == 100
    paper = {"fashion-mnist": "pseudo:1e-4:formula", "cifar10": "pseudo:1:formula", "mnist": "pseudo:1:formula"}
    paper["imagenet100"] = "pseudo:1e-3:formula"
    for name, row in paper.items():
        assert {"abs", row, "random"} <= set(shown[name].rows)
    assert "bootstrap:0.1:formula" in shown["fashion-mnist"].rows


@pytest.mark.parametrize(("preset", "experiment"), [(preset, name) for preset, of in PRESETS.items() for name in of])
def test_presets_have_good_rows(experiment: str, preset: str) -> None:
    chosen = settings(experiment, preset)
    assert [row.text for row in methods_of(chosen)] == ["dense", *chosen.rows]


def test_quick_is_the_same_but_shorter() -> None:
    for name in EXPERIMENTS:
        quick, paper = settings(name), PAPER[name]
        assert quick.epochs * quick.repetitions < paper.epochs * paper.repetitions / 50
        assert set(quick.rows) <= set(paper.rows)
        for same in ("iterative", "lr", "batch_size", "last"):
            assert getattr(quick, same) == getattr(paper, same)


def test_name_follows_what_a_single_result_depends_on() -> None:
    base = settings("fashion-mnist", "paper")
    assert base.name == "fashion-mnist-paper"
    for same in ({"repetitions": 3}, {"first_seed": 9}, {"rows": ["abs"]}, {"levels": [0.5]}, {"side": 32}):
        assert settings("fashion-mnist", "paper", **same).name == base.name
    others: list[dict[str, Any]] = [{"epochs": 9}, {"lr": 0.01}, {"dropout": 0}, {"last": 50}, {"iterative": True}]
    others += [{"images": 100}, {"replicas": 10}]
    names = {settings("fashion-mnist", "paper", **other).name for other in others}
    assert len(names | {base.name}) == 8
    chain = settings("mnist", "paper")
    assert settings("mnist", "paper", levels=LEVELS[:5]).name != chain.name  # a chain has come through its levels
    assert settings("imagenet100", "paper", side=224).name != "imagenet100-paper"


def test_committed_results_keep_their_names() -> None:
    rows = ("abs", "random", "pseudo:0", "moment:1")
    given = {"replicas": 20, "repetitions": 50}
    assert settings("fashion-mnist", "paper", dropout=0.5, **given).name == "fashion-mnist-78c4f58a"
    assert settings("fashion-mnist", "paper", dropout=0.1, rows=rows, **given).name == "fashion-mnist-cd77790a"
    assert settings("mnist", "paper", epochs=40, retrain_epochs=10).name == "mnist-0a067a96"


def test_numbers_that_are_equal_have_one_name() -> None:
    assert settings("cifar10", lr=1).name == settings("cifar10", lr=1.0).name
    assert settings("mnist", levels=[0.1 + 0.2]).levels == (0.3,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "--epochs=0: .*at least 1"),
        ({"epochs": 2.5}, "--epochs=2.5: give a whole number"),
        ({"epochs": True}, "--epochs=True: give a whole number"),
        ({"repetitions": "ten"}, "--repetitions='ten': give a whole number"),
        ({"retrain_epochs": -1}, "--retrain-epochs=-1: .*at least 1"),
        ({"first_seed": -1}, "--first-seed=-1: .*at least 0"),
        ({"last": 1}, "--last=1: .*at least 2"),
        ({"replicas": 1}, "--replicas=1: .*2 to 1000"),
        ({"replicas": 1001}, "--replicas=1001: .*2 to 1000"),
        ({"lr": float("inf")}, "--lr=inf: .*above 0"),
        ({"lr": "fast"}, "--lr='fast': give a number"),
        ({"dropout": 1.0}, "--dropout=1.0: .*below 1"),
        ({"iterative": 1}, "--iterative=1: give true or false"),
        ({"levels": []}, "--levels: give at least one"),
        ({"levels": [0.5, 90]}, "--levels=90: .*below 1"),
        ({"levels": [0.5, 0.9999999]}, "--levels=1.0: .*below 1"),
        ({"levels": [float("nan")]}, "--levels=nan: .*below 1"),
        ({"levels": ["0.5"]}, "--levels='0.5': give a share"),
        ({"levels": [0.9, 0.5]}, "--levels 0.9 0.5: give rising levels"),
        ({"levels": [0.5, 0.5]}, "--levels 0.5 0.5: give rising levels"),
        ({"rows": []}, "--rows: give at least one"),
        ({"rows": [1]}, "--rows=1: give text"),
        ({"colour": 1}, "setting 'colour' is not known; known: repetitions"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings("fashion-mnist", **given)


def test_unknown_experiment_preset_and_size() -> None:
    with pytest.raises(SettingsError, match="unknown experiment 'cifar'; known: fashion-mnist, cifar10"):
        settings("cifar")
    with pytest.raises(SettingsError, match="unknown experiment 'cifar'"):
        Settings("cifar", 1, 1, 1, ("abs",))
    with pytest.raises(SettingsError, match="unknown preset 'slow' of mnist; known: paper, quick$"):
        settings("mnist", "slow")
    with pytest.raises(SettingsError, match="unknown preset 'slow' of fashion-mnist; known: paper, quick, demo"):
        settings("fashion-mnist", "slow")
    with pytest.raises(SettingsError, match="unknown preset 'demo' of cifar10"):
        settings("cifar10", "demo")
    with pytest.raises(SettingsError, match="--side=50: give a multiple of 32"):
        settings("imagenet100", side=50)


def test_toml(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('retrain-epochs = 7\nlr = 1\nrows = ["abs", "moment:1"]\nlevels = 0.5\niterative = true\n')
    chosen = settings("cifar10", **read_toml(file))
    assert (chosen.retrain_epochs, chosen.lr, chosen.levels, chosen.iterative) == (7, 1.0, (0.5,), True)
    assert chosen.rows == ("abs", "moment:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [("epoch = 3", "'epoch' is not known"), ("experiment = 1", "'experiment' is not known"), ("a b", "mine.toml")],
)
def test_bad_toml(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_toml(file)
    with pytest.raises(SettingsError, match="no.toml"):
        read_toml(tmp_path / "no.toml")
