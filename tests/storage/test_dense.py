"""Dense checkpoints: packed and made dense again, and what is none. The commands are in tests/test_cli_storage.py."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prunewald.storage import PackedFileError, container, inspect, load, save
from prunewald.storage.dense import pack, read_dense, unpack

from .helpers import holding, identical, net, pruned


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


def test_a_packed_file_by_another_name_is_not_packed_again(tmp_path: Path) -> None:
    save(net(), tmp_path / "packed.safetensors")
    content = bytearray((tmp_path / "packed.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(content)
    for name in ("packed", "damaged"):
        with pytest.raises(ValueError, match=f"{name}.safetensors: packed already"):
            pack(tmp_path / f"{name}.safetensors", tmp_path / "f.pw")
    assert not (tmp_path / "f.pw").exists()


@pytest.mark.parametrize("name", ["f.safetensors", "f.bin"])
@pytest.mark.parametrize(("dtype", "size"), [("F6_E2M3", 3), ("F4", 2), ("F8_E8M0", 4), ("X9", 4)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_dtype_that_is_not_known_is_named(tmp_path: Path, name: str, dtype: str, size: int, packed: bool) -> None:
    header: dict[str, Any] = {"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, size]}}
    if packed:
        header["__metadata__"] = {"format": "prunewald", "version": "1", "index": "[]", "sha256": ""}
    head = json.dumps(header).encode()
    (tmp_path / name).write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    reason = "packed already" if packed and dtype != "X9" else dtype if name == "f.safetensors" else "torch.save"
    with pytest.raises(ValueError, match=f"{name}.*{reason}"):
        pack(tmp_path / name, tmp_path / "f.pw")
    with pytest.raises(PackedFileError, match=f"{name}.*({dtype}|not one that prunewald wrote)"):
        load(tmp_path / name)


@pytest.mark.parametrize("key", [7, "__metadata__", "w" * 4097])
def test_a_key_that_names_no_tensor_leaves_the_old_file(tmp_path: Path, key: Any) -> None:
    save(net(), tmp_path / "f.pw")
    torch.save({"w": torch.ones(2, 2), key: torch.ones(2, 2)}, tmp_path / "dense.pt")
    with pytest.raises(ValueError, match=f"dense.pt.*{str(key)[:9]}"):
        pack(tmp_path / "dense.pt", tmp_path / "f.pw")
    assert identical(load(tmp_path / "f.pw"), net().state_dict())


def test_a_name_that_safetensors_keeps_is_not_unpacked(tmp_path: Path) -> None:
    row = {"names": ["__metadata__"], "dtype": "F32", "shape": [2]}
    container.write(tmp_path / "f.pw", json.dumps({"tensors": [row]}), {"dense/__metadata__": torch.ones(2)})
    assert torch.equal(load(tmp_path / "f.pw")["__metadata__"], torch.ones(2))
    with pytest.raises(ValueError, match="f.pw.*'__metadata__'"):
        unpack(tmp_path / "f.pw", tmp_path / "dense.safetensors")
    assert not (tmp_path / "dense.safetensors").exists()


def test_a_tied_tensor_counts_for_each_of_its_names(tmp_path: Path) -> None:
    shared = torch.zeros(1000)
    save(holding(**{f"n{i}": shared for i in range(50)}), tmp_path / "f.pw")
    assert len(load(tmp_path / "f.pw", max_bytes=4000)) == 50
    with pytest.raises(PackedFileError, match="f.pw.*200,000 bytes, more than 199,999"):
        unpack(tmp_path / "f.pw", tmp_path / "dense.safetensors", max_bytes=199_999)
    assert not (tmp_path / "dense.safetensors").exists()
    unpack(tmp_path / "f.pw", tmp_path / "dense.safetensors", max_bytes=200_000)
    assert len(load_file(tmp_path / "dense.safetensors")) == 50


def test_pack_takes_no_more_memory_than_it_may(tmp_path: Path) -> None:
    shared = torch.rand(1000)
    torch.save({"a": shared, "b": shared, "c": torch.ones(1).expand(100, 100)}, tmp_path / "dense.pt")
    save_file({"a": torch.rand(11_000)}, tmp_path / "dense.safetensors")
    for name in ("dense.pt", "dense.safetensors"):
        with pytest.raises(ValueError, match=f"{name}.*44,000 bytes, more than 43,999.*max_bytes"):
            pack(tmp_path / name, tmp_path / "f.pw", max_bytes=43_999)
        assert not (tmp_path / "f.pw").exists()
        pack(tmp_path / name, tmp_path / "f.pw", max_bytes=44_000)
        (tmp_path / "f.pw").unlink()
    with pytest.raises(ValueError, match="max_bytes=-1"):
        pack(tmp_path / "dense.pt", tmp_path / "f.pw", max_bytes=-1)


def test_pack_has_a_limit_by_itself(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1).expand(2**15, 2**14)}, tmp_path / "dense.pt")
    with pytest.raises(ValueError, match="dense.pt.*2,147,483,648 bytes, more than 1,073,741,824.*max_bytes"):
        pack(tmp_path / "dense.pt", tmp_path / "f.pw")


def test_a_deflated_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "dense.pt", "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for name in plain.namelist():
            deflated.writestr(name, plain.read(name))
    assert identical(read_dense(tmp_path / "dense.pt"), {"w": torch.zeros(100_000)})
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it is too large to read"))
    with pytest.raises(ValueError, match="dense.pt.*bytes, more than 300,000.*max_bytes"):
        read_dense(tmp_path / "dense.pt", max_bytes=300_000)
