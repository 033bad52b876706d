"""Loading: into a model that must fit, or as a state dict; on any error the model is untouched."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prunewald.storage import PackedFileError, load, save

from .helpers import holding, identical, net, noise, pruned


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    save(pruned(), tmp_path / "model.pw")
    return tmp_path / "model.pw"


def other(kind: str) -> nn.Module:
    model = net(seed=1)
    if kind == "more":
        model.append(nn.Linear(5, 2))
    elif kind == "fewer":
        del model[3]
    elif kind == "wider":
        model[0] = nn.Linear(21, 30)
    elif kind == "half":
        model.half()
    elif kind == "meta":
        model[3].to_empty(device="meta")
    elif kind == "expanded":
        model[1].running_mean = torch.zeros(1).expand(30)
    elif kind == "sparse":
        model[1].running_mean = torch.zeros(30).to_sparse()
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("more", "'4.weight' is in the model only; '4.bias' is in the model only"),
        ("fewer", "'3.weight' is in the file only; '3.bias' is in the file only"),
        (
            "wider",
            r"'0.weight'.*\(30, 20\).*\(30, 21\)",
        ),
        (
            "half",
            r"'0.weight'.*torch.float32.*torch.float16",
        ),
        ("meta", "'3.weight'.*meta"),
        ("expanded", "'1.running_mean'.*expanded"),
        ("sparse", "'1.running_mean'.*sparse_coo"),
    ],
)
def test_another_model_is_refused_and_untouched(packed: Path, kind: str, reason: str) -> None:
    model = other(kind)
    before = {name: t.clone() for name, t in model.state_dict().items() if not t.is_meta}
    with pytest.raises(ValueError, match=f"model.pw.*Sequential.*{reason}") as caught:
        load(packed, into=model)
    assert not isinstance(caught.value, PackedFileError)
    assert all(torch.equal(t.to_dense(), model.state_dict()[name].to_dense()) for name, t in before.items())


def test_a_damaged_file_leaves_the_model_untouched(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-1])
    model = net(seed=1)
    with pytest.raises(PackedFileError):
        load(packed, into=model)
    assert identical(model.state_dict(), net(seed=1).state_dict())


def test_tied_in_the_model_only(tmp_path: Path) -> None:
    """One tensor cannot take two values, but it can take two that are equal."""
    shared = torch.zeros(3)
    model = holding(a=shared, b=shared)
    save(holding(a=torch.ones(3), b=torch.tensor([1.0, 1.0, 2.0])), tmp_path / "f")
    with pytest.raises(ValueError, match="'a' and 'b' are tied in the model and differ in the file"):
        load(tmp_path / "f", into=model)
    assert not shared.any()
    save(holding(a=torch.ones(3), b=torch.ones(3)), tmp_path / "f")
    load(tmp_path / "f", into=model)
    assert shared.tolist() == [1, 1, 1]


def test_the_parameters_stay_the_same_objects(packed: Path) -> None:
    model = net(seed=1)
    before = list(model.parameters())
    load(packed, into=model)
    assert all(a is b and a.requires_grad for a, b in zip(before, model.parameters(), strict=True))


def test_what_is_loaded_is_independent_of_the_file(packed: Path) -> None:
    state = load(packed)
    packed.write_bytes(b"\xff" * packed.stat().st_size)
    assert identical(state, pruned().model.state_dict())
    for tensor in state.values():
        tensor.add_(1)


def test_a_compiled_model_has_the_names_of_the_one_inside(packed: Path, tmp_path: Path) -> None:
    model = net(seed=1)
    compiled: Any = torch.compile(model)
    assert load(packed, into=compiled) is compiled
    assert identical(model.state_dict(), pruned().model.state_dict())
    save(compiled, tmp_path / "again.pw")
    assert list(load(tmp_path / "again.pw")) == list(model.state_dict())


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        load(tmp_path / "nothing.pw")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=tmp_path.name):
        load(tmp_path)


def test_without_safetensors(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "safetensors", missing)
    with pytest.raises(ImportError, match="pip install safetensors"):
        load(packed)


def test_save_needs_no_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "safetensors", missing)
        save(holding(x=noise(torch.float32, 3)), tmp_path / "f")
    assert load(tmp_path / "f")["x"].shape == (3,)
