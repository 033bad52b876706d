"""`prunewald reproduce` as a user runs it: in processes of their own, killed, beside each other, on a bare machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from prunewald.lab.machine import Machine, MachineError
from prunewald.lab.pages import PAPER_SAYS, describe, pages
from prunewald.lab.records import read_records
from prunewald.lab.reproduce import reproduce
from prunewald.lab.settings import Settings, settings
from tests.lab.helpers import numbers

pytestmark = pytest.mark.usefixtures("one_thread", "embedded_data")
FLAGS = ["--epochs", "1", "--retrain-epochs", "1", "--repetitions", "2", "--images", "200", "--levels", "0.5", "0.9"]
FLAGS += ["--rows", "abs", "moment:1"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def embedded_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRUNEWALD_DATA", raising=False)
    ENVIRONMENT.pop("PRUNEWALD_DATA", None)


def chosen(**given: Any) -> Settings:
    plain: dict[str, Any] = {"epochs": 1, "retrain_epochs": 1, "repetitions": 2, "images": 200, "levels": (0.5, 0.9)}
    return settings("fashion-mnist", **(plain | {"rows": ("abs", "moment:1")} | given))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The results of one process that was let alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PRUNEWALD_DATA", raising=False)
        out = tmp_path_factory.mktemp("whole")
        reproduce(chosen(), out, Machine(device="cpu", workers=1))
    return out


def start(out: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "prunewald.cli", "reproduce", "fashion-mnist", *FLAGS, "--out", str(out), *flags]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("flags", [("--workers", "2"), ("--workers", "1", "--iterative")])
def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path, whole: Path, flags: tuple[str, ...]) -> None:
    mine = chosen(iterative="--iterative" in flags)
    reproduce(mine, whole, Machine(device="cpu", workers=1))
    expected = read_records(whole / mine.name)
    out = tmp_path / "killed"
    records = out / mine.name / "records"
    run = start(out, "--piece", "1", *flags)
    while len(list(records.glob("*/*.json"))) < 3:
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    workers = children(run.pid)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    deadline = time.monotonic() + 20
    while not all(map(gone, workers)):  # nobody is left to write into the folder
        assert time.monotonic() < deadline
        time.sleep(0.05)
    written = {path: path.stat().st_mtime_ns for path in records.glob("*/*.json")}
    assert 3 <= len(written) < len(expected)
    text = reproduce(mine, out, Machine(device="cpu", workers=1))
    assert numbers(read_records(out / mine.name)) == numbers(expected)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert "table.txt" in text


@pytest.mark.slow
def test_two_runs_share_a_folder_at_once(tmp_path: Path, whole: Path) -> None:
    mine = chosen()
    runs = [start(tmp_path / "both", "--piece", "2", "--workers", "1") for _ in range(2)]
    for run in runs:
        _, said = run.communicate()
        assert run.returncode == 0, said
    assert numbers(read_records(tmp_path / "both" / mine.name)) == numbers(read_records(whole / mine.name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_on_a_ray_cluster(tmp_path: Path, whole: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        text = reproduce(chosen(), tmp_path, Machine(device="cpu", executor="ray"))
    finally:
        ray.shutdown()
    assert "fashion-mnist: 2 networks" in text
    assert numbers(read_records(tmp_path / chosen().name)) == numbers(read_records(whole / chosen().name))


@pytest.mark.slow
def test_machines_divide_the_seeds_and_merge_by_copying(tmp_path: Path, whole: Path) -> None:
    here, there = (chosen(repetitions=1, first_seed=seed) for seed in (0, 1))
    assert here.name == there.name == chosen().name
    for place, mine in (("a", here), ("b", there)):
        reproduce(mine, tmp_path / place, Machine(device="cpu", workers=1))
    shutil.copytree(tmp_path / "b" / here.name, tmp_path / "a" / here.name, dirs_exist_ok=True)
    merged = tmp_path / "a" / here.name
    assert numbers(read_records(merged)) == numbers(read_records(whole / here.name))
    pages(merged)
    table = (merged / "table.txt").read_text()
    assert table == (whole / here.name / "table.txt").read_text()
    assert "2 networks" in table


def test_minutes_end_a_run_and_say_so(tmp_path: Path) -> None:
    text = reproduce(chosen(), tmp_path, Machine(device="cpu", workers=1, minutes=0))
    assert "nothing is finished yet" in text
    assert "stopped after 0 minutes, as asked: the same command goes on" in text


def test_pages(whole: Path) -> None:
    folder = whole / chosen().name
    for name in ("table.txt", "lines.json", "figure.png", "page.html"):
        (folder / name).unlink()
    text = reproduce(chosen(), whole, Machine(device="cpu", workers=1))
    assert text.startswith(describe(folder))
    assert "\ndata: embedded part of Fashion-MNIST" in text
    assert [line for line in text.splitlines() if line.startswith(str(folder))] == [
        str(folder / name) for name in ("table.txt", "lines.json", "figure.png", "page.html")
    ]
    assert PAPER_SAYS["fashion-mnist"] in (folder / "table.txt").read_text()
    lines = json.loads((folder / "lines.json").read_text())
    assert {(line["row"], line["level"]) for line in lines} == {
        ("dense", 0.0), ("abs", 0.5), ("abs", 0.9), ("moment:1", 0.5), ("moment:1", 0.9)
    }  # fmt: skip
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    record = read_records(folder)[0]
    assert record.environment["torch"] == torch.__version__
    assert record.environment["seconds"] > 0


BARE = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
from prunewald.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_bare_machine_trains_and_keeps_records(tmp_path: Path) -> None:
    code = BARE.format(missing=("scipy", "matplotlib", "tqdm", "safetensors", "pandas", "PIL", "ray"))
    command = [sys.executable, "-c", code, "reproduce", "fashion-mnist", *FLAGS, "--workers", "1"]
    done = subprocess.run([*command, "--out", tmp_path], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / chosen().name
    assert len(read_records(folder)) == 10
    assert done.stdout.strip() == (
        f"10 records in {folder}; tables and figures need scipy: pip install 'prunewald[demo]', "
        f"then prunewald results pages {folder}"
    )


def test_without_matplotlib_there_is_a_table(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = reproduce(chosen(), whole, Machine(device="cpu", workers=1))
    assert "over ABS" in text
    assert text.splitlines()[-1].startswith(
        f"10 records in {whole / chosen().name}; tables and figures need matplotlib"
    )


def test_a_bad_machine_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="--device tpu"):
        reproduce(chosen(), tmp_path / "out", Machine(device="tpu"))
    assert not (tmp_path / "out").exists()
