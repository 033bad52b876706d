"""Saving: what is refused by name, and files that are whole or as they were."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunewald.pruning.report import Report
from prunewald.storage import inspect, load, save

from .helpers import holding, identical, net, pruned


class Extra(nn.Linear):
    def get_extra_state(self) -> object:
        return {"a": 1}


class Wrapped(Tensor):
    pass


REFUSED = {
    "extra": (Extra(2, 2), "'_extra_state'.*dict"),
    "complex128": (holding(x=torch.zeros(2, dtype=torch.complex128)), "'x'.*torch.complex128"),
    "sparse": (holding(x=torch.eye(2).to_sparse()), "'x'.*sparse_coo"),
    "meta": (nn.Linear(2, 2, device="meta"), "'weight'.*meta"),
    "lazy": (nn.LazyLinear(2), "'weight'.*UninitializedParameter"),
    "dimensions": (holding(x=torch.ones([1] * 65)), "'x'.*65 dimensions.*64"),
    "reserved": (holding(__metadata__=torch.ones(2)), "'__metadata__'.*another"),
    "subclass": (holding(x=torch.ones(2).as_subclass(Wrapped)), "'x'.*Wrapped"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_stored_is_named(tmp_path: Path, case: str) -> None:
    model, reason = REFUSED[case]
    with pytest.raises(ValueError, match=f"cannot store {reason}"):
        save(model, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


class Numbered(nn.Module):
    """A model whose state dict has a key that is no name."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {"w": torch.ones(2), 7: torch.ones(2)}


@pytest.mark.parametrize(
    ("model", "reason"),
    [(Numbered(), "7.*int.*string"), (holding(**{"w" * 4097: torch.ones(2)}), "4,097 bytes.*4,096")],
    ids=["number", "long"],
)
def test_a_name_that_no_file_can_hold_leaves_the_old_file(tmp_path: Path, model: nn.Module, reason: str) -> None:
    save(net(), tmp_path / "f")
    with pytest.raises(ValueError, match=reason):
        save(model, tmp_path / "f")
    assert identical(load(tmp_path / "f"), net().state_dict())


@pytest.mark.parametrize(
    "source",
    [None, {"w": torch.ones(2)}, torch.ones(2), SimpleNamespace(model=nn.Linear(2, 2), masks={})],
    ids=lambda s: type(s).__name__,
)
def test_neither_pruner_nor_model(tmp_path: Path, source: Any) -> None:
    with pytest.raises(TypeError, match=f"model, masks and report.*not a {type(source).__name__}"):
        save(source, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_the_report_of_a_pruner_goes_along(tmp_path: Path) -> None:
    source = pruned()
    save(source, tmp_path / "without")
    assert inspect(tmp_path / "without").report is None
    source.report = Report([], "Magnitude()", "", "layer")
    save(source, tmp_path / "with")
    assert inspect(tmp_path / "with").report == source.report
    assert identical(load(tmp_path / "with"), load(tmp_path / "without"))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    old = pruned()
    save(old, tmp_path / "f")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="disk full"):
            save(net(seed=1), tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert identical(load(tmp_path / "f"), old.model.state_dict())


KILLED = """
import os, signal, sys
from torch import nn
from prunewald.storage import save
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
assert "safetensors" not in sys.modules
save(nn.Linear(500, 500), sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    old = pruned()
    save(old, tmp_path / "f")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "f")],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert identical(load(tmp_path / "f"), old.model.state_dict())


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_modes_and_links(tmp_path: Path) -> None:
    def mode() -> int:
        return stat.S_IMODE((tmp_path / "f").stat().st_mode)

    before = os.umask(0o027)
    try:
        save(net(), tmp_path / "f")
        assert mode() == 0o640
        (tmp_path / "f").chmod(0o604)
        (tmp_path / "link").symlink_to("f")
        save(net(seed=1), tmp_path / "link")
    finally:
        os.umask(before)
    assert mode() == 0o604
    assert (tmp_path / "link").is_symlink()
    assert identical(load(tmp_path / "f"), net(seed=1).state_dict())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        save(net(), tmp_path / "nowhere" / "f")
