import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from prunewald import cli
from prunewald.lab.machine import Machine
from prunewald.lab.records import Record, RecordFolder
from prunewald.lab.settings import Settings, settings


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"prunewald {version('prunewald')}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "command"),
        (["dmeo"], "'dmeo'"),
        (["demo", "--seeds", "many"], "'many'"),
        (["demo", "--levels", "0.5", "x"], "'x'"),
        (["demo", "--seeds", "1"], "--seeds=1"),
        (["demo", "--epochs", "0"], "--epochs=0"),
        (["demo", "--retrain-epochs", "0"], "--retrain-epochs=0"),
        (["demo", "--levels", "0.5", "90"], "--levels=90"),
        (["demo", "--levels", "0.5", "0.5"], "--levels 0.5 0.5: give rising levels"),
        (["demo", "--workers", "-2"], "--workers=-2"),
        (["demo", "--data", "/no/such/folder"], "'/no/such/folder' does not exist"),
        (["demo", "--out", __file__], "test_cli.py"),
        (["reproduce"], "experiment"),
        (["reproduce", "cifar"], "unknown experiment 'cifar'; known: fashion-mnist, cifar10, mnist, imagenet100"),
        (["reproduce", "mnist", "--preset", "slow"], "unknown preset 'slow' of mnist; known: paper, quick"),
        (["reproduce", "mnist", "--levels", "0.5", "90"], "--levels=90"),
        (["reproduce", "mnist", "--levels", "half"], "'half'"),
        (["reproduce", "mnist", "--epochs", "0"], "--epochs=0"),
        (["reproduce", "mnist", "--epoch", "3"], "--epoch"),
        (["reproduce", "mnist", "--rows", "abs", "wald"], "unknown row 'wald'"),
        (["reproduce", "mnist", "--rows", "every:1"], "row 'every:1' in an iterative run"),
        (["reproduce", "mnist", "--rows", "abs", "abs"], "abs is there twice"),
        (["reproduce", "mnist", "--device", "tpu"], "--device tpu: give cpu or cuda"),
        (["reproduce", "mnist", "--config", "/no/such.toml"], "/no/such.toml"),
        (["reproduce", "mnist", "--data", "/no/such/folder"], "'/no/such/folder' does not exist"),
        (["reproduce", "fashion-mnist", "--out", __file__], "test_cli.py"),
        (["results", "table", "/no/such/folder"], "/no/such/folder is no results folder"),
        (["results", "choose", "/no/such/folder"], "/no/such/folder is no results folder"),
        (["results", "export", "/no/such/folder"], "export needs a file to write"),
        (["results", "export", "/no/such/folder", "x.tar.xz"], "/no/such/folder is no results folder"),
        (["results", "import", __file__], "test_cli.py is no archive of results"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    args: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PRUNEWALD_DATA", raising=False)
    if args[:1] in (["demo"], ["reproduce"]) and "--out" not in args:
        args = [*args, "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as exit_:
        sys.exit(cli.main(args))
    shown = capsys.readouterr()
    assert exit_.value.code == 2
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("prunewald")
    assert "--out" in args or args[:1] == ["demo"] or not (tmp_path / "out").exists()


def test_interrupt_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "demo", interrupted)
    assert cli.main(["demo"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_demo_flags_are_settings_of_the_preset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def remember(*given: object) -> str:
        seen.append(given)
        return "the table"

    monkeypatch.setattr(cli, "demo", remember)
    assert cli.main(["demo"]) == 0
    args = ["--seeds", "3", "--epochs", "4", "--retrain-epochs", "2", "--levels", "0.9", "0.5", "--data", "there"]
    assert cli.main(["demo", *args, "--out", "here", "--workers", "2"]) == 0
    plain, given = seen
    assert plain == (settings("fashion-mnist", "demo"), Path("demo"), None, 0)
    more = {"repetitions": 3, "epochs": 4, "retrain_epochs": 2, "levels": (0.5, 0.9)}
    assert given == (settings("fashion-mnist", "demo", **more), Path("here"), Path("there"), 2)
    assert capsys.readouterr().out == "\nthe table\n\nthe table\n"


@pytest.mark.slow
def test_demo_as_a_user_runs_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prunewald.cli", "demo", "--out", str(tmp_path / "out")]
    command += ["--seeds", "2", "--epochs", "1", "--retrain-epochs", "1", "--levels", "0.9", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "M&U pseudo bootstrap" in done.stdout
    assert "13/13" in done.stderr  # the progress bar
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "figure.png",
        "model.pw",
        "page.html",
        "results.json",
    ]


def test_reproduce_takes_flags_over_a_file_over_the_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def remember(*given: object) -> str:
        seen.append(given)
        return "the table"

    monkeypatch.setattr(cli, "reproduce", remember)
    file = tmp_path / "mine.toml"
    file.write_text('epochs = 7\nretrain-epochs = 8\nrows = ["abs"]\n')
    args = ["reproduce", "cifar10", "--preset", "paper", "--config", str(file), "--epochs", "9", "--iterative"]
    args += ["--minutes", "4", "--piece", "3", "--workers", "2", "--device", "cpu", "--data", "there", "--out", "here"]
    assert cli.main(args) == 0
    ((chosen, out, machine),) = seen
    assert (chosen.epochs, chosen.retrain_epochs, chosen.repetitions, chosen.rows) == (9, 8, 20, ("abs",))
    assert chosen.iterative
    assert out == Path("here")
    assert machine == Machine(Path("there"), "cpu", workers=2, piece=3, minutes=4.0)
    assert capsys.readouterr().out == "\nthe table\n"


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--help"])
    shown = capsys.readouterr().out
    for field in fields(Settings):
        assert field.name == "experiment" or f"--{field.name.replace('_', '-')} " in shown.replace(",", " ")


def test_results_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    results = RecordFolder(tmp_path / "a", settings("mnist"), "digits")
    for seed in (0, 1):
        for row, validation in (("abs", 0.5), ("moment:1", 0.6), ("moment:10", 0.7)):
            record = Record(seed, row, 0.9, 0.8, 0.5, 0.7, validation, 0.9, 5.0, 1.1, 0.6, 0.1, {})
            results.write(record)

    def shown(*args: str) -> str:
        assert cli.main(["results", *args]) == 0
        return capsys.readouterr().out

    folder = str(results.folder)
    assert shown("choose", folder).splitlines() == [
        "  70.00 % of the validation data  moment:10",
        "  60.00 % of the validation data  moment:1",
        "  50.00 % of the validation data  abs",
    ]
    table = shown("table", folder)
    assert "mnist: 2 networks, dense 80.00 %" in table
    assert "the paper: dense 98.516 %" in table
    assert [Path(line).name for line in shown("pages", folder).splitlines()] == [
        "table.txt",
        "lines.json",
        "figure.png",
        "page.html",
    ]
    assert cli.main(["page", folder, str(tmp_path / "run.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run.html'}\n"
    assert "M&U second moment" in (tmp_path / "run.html").read_text().replace("\\u0026", "&")
    assert shown("export", folder, str(tmp_path / "x.tar.xz")) == f"6 records in {tmp_path / 'x.tar.xz'}\n"
    monkeypatch.chdir(tmp_path)
    assert shown("import", "x.tar.xz") == f"6 new records in results/{results.folder.name}\n"
    assert shown("import", "x.tar.xz", "other") == f"6 new records in other/{results.folder.name}\n"
    assert shown("import", "x.tar.xz") == f"0 new records in results/{results.folder.name}\n"
