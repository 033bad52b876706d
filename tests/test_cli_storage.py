"""The command line: dense checkpoints packed, unpacked, inspected."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import prunewald as pw
from prunewald import cli
from prunewald.storage import inspect, load
from tests.storage.helpers import identical, net, pruned


@pytest.fixture
def state() -> dict[str, Tensor]:
    found: dict[str, Tensor] = pruned(0.9, inputs=300).model.state_dict()
    return found


@pytest.mark.parametrize("kind", ["safetensors", "torch", "wrapped"])
def test_there_and_back(tmp_path: Path, state: dict[str, Tensor], kind: str, capsys: Any) -> None:
    source = tmp_path / ("dense.safetensors" if kind == "safetensors" else "dense.pt")
    if kind == "safetensors":
        save_file(state, source)
    else:
        torch.save({"state_dict": state, "epoch": 3} if kind == "wrapped" else state, source)
    assert cli.main(["pack", str(source), str(tmp_path / "f.pw")]) == 0
    assert "bits a weight" in capsys.readouterr().out
    assert (tmp_path / "f.pw").stat().st_size < source.stat().st_size / 5
    assert cli.main(["unpack", str(tmp_path / "f.pw"), str(tmp_path / "again.safetensors")]) == 0
    assert identical(load_file(tmp_path / "again.safetensors"), state)


def test_in_fewer_bits(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, tmp_path / "dense.pt")
    how = ["--values", "codebook", "--size", "16", "--codec", "huffman", "--positions", "gaps"]
    assert cli.main(["pack", str(tmp_path / "dense.pt"), str(tmp_path / "f.pw"), *how]) == 0
    found = load(tmp_path / "f.pw")
    assert len(found["0.weight"].unique()) == 17
    assert torch.equal(found["0.bias"], state["0.bias"])
    assert {row.stored for row in inspect(tmp_path / "f.pw").tensors if row.name.endswith("0.weight")} == {"codebook"}


def test_tied_tensors(tmp_path: Path) -> None:
    shared = torch.randn(40, 40)
    torch.save({"a": shared, "b": shared}, tmp_path / "dense.pt")
    cli.main(["pack", str(tmp_path / "dense.pt"), str(tmp_path / "f.pw")])
    assert [row.name for row in inspect(tmp_path / "f.pw").tensors] == ["a = b"]
    cli.main(["unpack", str(tmp_path / "f.pw"), str(tmp_path / "again.safetensors")])
    assert identical(load_file(tmp_path / "again.safetensors"), {"a": shared, "b": shared})


def test_inspect(tmp_path: Path, capsys: Any) -> None:
    pruner = pw.Pruner(net(inputs=300), criterion="magnitude")
    pruner.prune(0.9)
    pw.save(pruner, tmp_path / "f.pw")
    assert cli.main(["inspect", str(tmp_path / "f.pw")]) == 0
    assert capsys.readouterr().out == f"{inspect(tmp_path / 'f.pw')}\n"
    assert cli.main(["inspect", "--report", str(tmp_path / "f.pw")]) == 0
    assert f"\n\n{pruner.report}\n" in capsys.readouterr().out


def test_what_is_wrong_is_one_line(tmp_path: Path, state: dict[str, Tensor], capsys: Any) -> None:
    torch.save(state, tmp_path / "dense.pt")
    torch.save(net(), tmp_path / "module.pt")  # needs its code to load
    torch.save({"lr": 0.1}, tmp_path / "settings.pt")
    pw.save(net(), tmp_path / "good.pw")
    (tmp_path / "bad.pw").write_bytes(b"no")
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    out = str(tmp_path / "out.pw")
    for args, reason in (
        (["pack", "bad.safetensors", out], "bad.safetensors: not a whole safetensors file"),
        (["pack", "bad.pw", out], "bad.pw' is no state dict that torch.save wrote"),
        (["pack", "module.pt", out], "module.pt' is no state dict that torch.save wrote"),
        (["pack", "settings.pt", out], "settings.pt: not a state dict; save model.state_dict()"),
        (["pack", "dense.pt", out, "--values", "codebook", "--size", "1"], "size=1"),
        (["pack", "nothing.pt", out], "nothing.pt"),
        (["pack", "dense.pt", str(tmp_path / "dense.pt")], "dense.pt is what is read: give another name"),
        (["pack", "good.pw", out], "good.pw: packed already"),
        (["unpack", "good.pw", str(tmp_path / "good.pw")], "good.pw is what is read: give another name"),
        (["unpack", "bad.pw", out], "bad.pw: not a whole safetensors file"),
        (["inspect", "bad.pw"], "bad.pw: not a whole safetensors file"),
        (["inspect", "nothing.pw"], "nothing.pw"),
    ):
        assert cli.main([args[0], str(tmp_path / args[1]), *args[2:]]) == 2
        assert reason in (error := capsys.readouterr().err)
        assert error.count("\n") == 1
        assert not Path(out).exists()


def test_names_in_errors_are_shown_and_not_obeyed(tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "dense.pt"
    torch.save({"\x1b[2J": torch.ones(2, dtype=torch.complex128)}, source)
    assert cli.main(["pack", str(source), str(tmp_path / "f.pw")]) == 2
    assert "\\x1b[2J" in capsys.readouterr().err
    head = json.dumps({"w": {"dtype": "\x1b[2J", "shape": [], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "f.pw").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    assert cli.main(["inspect", str(tmp_path / "f.pw")]) == 2
    error = capsys.readouterr().err
    assert "\\x1b[2J" in error
    assert error.count("\n") == 1
    assert "\x1b" not in error


def test_a_limit_for_pack(tmp_path: Path, capsys: Any) -> None:
    torch.save({"w": torch.ones(1).expand(100, 100)}, tmp_path / "dense.pt")
    pack = ["pack", str(tmp_path / "dense.pt"), str(tmp_path / "f.pw"), "--max-bytes"]
    assert cli.main([*pack, "39999"]) == 2
    assert "40,000 bytes, more than 39,999" in capsys.readouterr().err
    assert cli.main([*pack, "40000"]) == 0


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_only_a_regular_file_is_written_over(tmp_path: Path, state: dict[str, Tensor], capsys: Any) -> None:
    torch.save(state, tmp_path / "dense.pt")
    os.mkfifo(tmp_path / "pipe")
    assert cli.main(["pack", str(tmp_path / "dense.pt"), str(tmp_path / "pipe")]) == 2
    assert "pipe' is" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
