import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from prunewald import cli


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
        (["demo", "--seeds", "1"], "seeds 1"),
        (["demo", "--epochs", "0"], "epochs 0"),
        (["demo", "--retrain-epochs", "0"], "retrain-epochs 0"),
        (["demo", "--levels", "0.5", "90"], "level 90"),
        (["demo", "--data", "/no/such/folder"], "'/no/such/folder' does not exist"),
        (["demo", "--out", __file__], "test_cli.py"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if args[:1] == ["demo"] and "--out" not in args:
        args = [*args, "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as exit_:
        sys.exit(cli.main(args))
    shown = capsys.readouterr()
    assert exit_.value.code == 2
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("prunewald")


def test_interrupt_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    assert cli.main(["demo"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_demo_as_a_user_runs_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "prunewald.cli", "demo", "--out", str(tmp_path / "out")]
    command += ["--seeds", "2", "--epochs", "1", "--retrain-epochs", "1", "--levels", "0.9"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "M&U pseudo bootstrap" in done.stdout
    assert "10/10" in done.stderr  # the progress bar
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "figure.png",
        "model.pw",
        "results.json",
    ]
