"""Dense checkpoints: packed and made dense again, and what is none. The commands are in tests/test_cli_storage.py."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prunewald.storage import inspect, load, save
from prunewald.storage.dense import pack, read_dense, unpack

from .helpers import identical, net, pruned


@pytest.fixture
def state() -> dict[str, Tensor]:
    found: dict[str, Tensor] = pruned(0.9, inputs=100).model.state_dict()
    return found


@pytest.mark.parametrize("kind", ["safetensors", "torch", "state_dict", "model"])
def test_there_and_back(tmp_path: Path, state: dict[str, Tensor], kind: str) -> None:
    source = tmp_path / ("dense.safetensors" if kind == "safetensors" else "dense.pt")
    if kind == "safetensors":
        save_file(state, source)
    else:
        torch.save(state if kind == "torch" else {kind: state, "epoch": 3}, source)
    assert identical(read_dense(source), state)
    assert str(pack(source, tmp_path / "f.pw")) == str(inspect(tmp_path / "f.pw"))
    unpack(tmp_path / "f.pw", tmp_path / "again.safetensors")
    assert identical(load_file(tmp_path / "again.safetensors"), state)


def test_one_word_for_values_is_for_matrices_that_are_no_biases(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {"w": torch.randn(30, 30), "layer.bias_ih": torch.randn(30, 30), "b": torch.randn(900)}
    state["n"] = torch.arange(900).view(30, 30)
    torch.save(state, tmp_path / "dense.pt")
    pack(tmp_path / "dense.pt", tmp_path / "f.pw", values="int4")
    found = load(tmp_path / "f.pw")
    assert [name for name, tensor in state.items() if not torch.equal(tensor, found[name])] == ["w"]


def test_what_is_no_state_dict(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save(net(), tmp_path / "module.pt")  # needs its code to load
    torch.save({"lr": 0.1}, tmp_path / "settings.pt")
    save(net(), tmp_path / "good.pw")
    (tmp_path / "bad.pt").write_bytes(b"no")
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    for name, reason in (
        ("module.pt", "torch.save"),
        ("settings.pt", "torch.save"),
        ("bad.pt", "torch.save"),
        ("good.pw", "packed already"),
        ("bad.safetensors", "safetensors"),
    ):
        with pytest.raises(ValueError, match=f"{name}.*{reason}"):
            read_dense(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nothing.pt"):
        read_dense(tmp_path / "nothing.pt")


def test_a_file_is_never_written_over_itself(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, tmp_path / "f")
    (tmp_path / "link").symlink_to("f")
    for call in (pack, unpack):
        with pytest.raises(ValueError, match="link.*another name"):
            call(tmp_path / "f", tmp_path / "link")
    assert identical(read_dense(tmp_path / "f"), state)
