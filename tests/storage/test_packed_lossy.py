"""Values in fewer bits: which tensors, how far off, and the same on every machine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.storage import inspect, load, save

from .helpers import holding, identical, net, pruned, pruner

WEIGHTS = {"0.weight", "3.weight"}
ALL = ["float32", "float16", "bfloat16", "int8", "int4", "codebook"]


def kinds(path: Path) -> dict[str, str]:
    return {row.name: row.stored for row in inspect(path).tensors}


@pytest.mark.parametrize("values", ALL)
@pytest.mark.parametrize("plain", [True, False])
def test_only_weights_change_and_zeros_stay(tmp_path: Path, values: Any, plain: bool) -> None:
    source = pruned(inputs=50)
    save(source.model if plain else source, tmp_path / "f", values=values)
    before, after = source.model.state_dict(), load(tmp_path / "f")
    for name, tensor in before.items():
        if name not in WEIGHTS or values == "float32":
            assert identical({"x": tensor}, {"x": after[name]})
        else:
            assert torch.equal(tensor == 0, after[name] == 0) or values.startswith("int")
            assert not after[name][tensor == 0].any()
            assert after[name].dtype == tensor.dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("values", ["int8", "int4"])
def test_linear_is_within_half_a_step(tmp_path: Path, dtype: torch.dtype, values: Any) -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 50).to(dtype)
    save(pruner(holding(w=weight), {"w": torch.ones(40, 50, dtype=torch.bool)}), tmp_path / "f", values=values)
    assert kinds(tmp_path / "f") == {"w": "linear"}
    step = float(weight.abs().max()) / (127 if values == "int8" else 7)
    error = (load(tmp_path / "f")["w"].double() - weight.double()).abs()
    rounding = float(weight.abs().max()) * torch.finfo(dtype).eps
    assert error.max() <= step / 2 + rounding
    found = load(tmp_path / "f")["w"].unique()
    assert len(found) <= (255 if values == "int8" else 15)


@pytest.mark.parametrize(("values", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
def test_floats_are_those_of_torch(tmp_path: Path, values: Any, dtype: torch.dtype) -> None:
    source = pruned(inputs=50)
    save(source, tmp_path / "f", values=values)
    weight = source.model[0].weight.detach()
    assert torch.equal(load(tmp_path / "f")["0.weight"], weight.to(dtype).float())


@pytest.mark.parametrize("size", [2, 5, 32, 256])
def test_codebook(tmp_path: Path, size: int) -> None:
    source = pruned(0.5, inputs=200)
    save(source, tmp_path / "f", values="codebook", size=size)
    weight, found = source.model[0].weight.detach(), load(tmp_path / "f")["0.weight"]
    assert len(found[found != 0].unique()) == size
    torch.testing.assert_close(found.sum(), weight.sum(), rtol=1e-3, atol=1e-3)  # centres are means


def test_the_lossy_values_are_stored_as_they_load(tmp_path: Path) -> None:
    """What was cut once is cut no further: it is found to be few values, and stored bit for bit."""
    model = net(inputs=100)
    for values in ("int8", "int4", "codebook"):
        save(model, tmp_path / "f", values=values)
        once = load(tmp_path / "f", into=net(seed=1, inputs=100))
        save(once, tmp_path / "g")
        assert kinds(tmp_path / "g")["0.weight"] == "codebook"
        assert identical(load(tmp_path / "g"), once.state_dict())


def test_a_quantised_model_needs_no_argument(tmp_path: Path) -> None:
    source = pruned(0.9, inputs=1000)
    shared = torch.randn(16)
    for name, mask in source.masks.items():
        weight = source.model.get_parameter(name).data
        weight[mask] = shared[torch.randint(16, (int(mask.sum()),))]
    save(source, tmp_path / "f")
    assert {kinds(tmp_path / "f")[name] for name in WEIGHTS} == {"codebook"}
    assert identical(load(tmp_path / "f"), source.model.state_dict())
    row = next(row for row in inspect(tmp_path / "f").tensors if row.name == "0.weight")
    assert row.payload < 1.03 * row.bound


def test_by_name(tmp_path: Path) -> None:
    source = pruned(inputs=100)
    save(source, tmp_path / "f", values={"3.*": None, "*.weight": "codebook"}, size={"0.weight": 4, "*": 8})
    found = load(tmp_path / "f")
    assert len(found["0.weight"].unique()) == 5
    assert torch.equal(found["3.weight"], source.model[3].weight)
    assert torch.equal(found["0.bias"], source.model[0].bias)


def test_tied_weights_by_either_name(tmp_path: Path) -> None:
    shared = torch.randn(30, 40)
    for name in ("a", "b"):
        save(holding(a=shared, b=shared), tmp_path / "f", values={name: "int4"})
        found = load(tmp_path / "f")
        assert torch.equal(found["a"], found["b"])
        assert len(found["a"].unique()) <= 15


def test_embeddings_and_norms_stay(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 20), nn.LayerNorm((2, 20)), nn.Linear(20, 20))
    save(model, tmp_path / "f", values="int4")
    found = load(tmp_path / "f")
    same = [name for name, tensor in model.state_dict().items() if torch.equal(tensor, found[name])]
    assert set(model.state_dict()) - set(same) == {"2.weight"}
    save(nn.LayerNorm((20, 20)), tmp_path / "f", values="int4")  # nothing to cut


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "unknown": (None, {"values": "int3"}, "values='int3'.*None.*'int8'"),
    "NaN": (float("nan"), {"values": "codebook"}, "'0.weight': .*infinite or NaN"),
    "infinite": (float("inf"), {"values": "int8"}, "'0.weight': .*infinite or NaN"),
    "too large": (1e6, {"values": "float16"}, "'0.weight'.*too large.*float16"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be(tmp_path: Path, case: str) -> None:
    value, how, reason = BAD[case]
    model = net()
    if value is not None:
        model.get_parameter("0.weight").data[0, 0] = value
    with pytest.raises(ValueError, match=reason):
        save(model, tmp_path / "f", **how)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", ALL)
@pytest.mark.parametrize(
    "weight", [torch.zeros(40, 30), torch.full((40, 30), -3e-45), torch.ones(40, 30), torch.ones(0, 3)]
)
def test_odd_weights(tmp_path: Path, values: Any, weight: Tensor) -> None:
    save(holding(w=weight), tmp_path / "f", values={"w": values})
    found = load(tmp_path / "f")["w"]
    torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-30)


def test_everything_pruned(tmp_path: Path) -> None:
    source = pruner(holding(w=torch.zeros(40, 30)), {"w": torch.zeros(40, 30, dtype=torch.bool)})
    for values in ALL:
        save(source, tmp_path / "f", values=values)
        assert torch.equal(load(tmp_path / "f")["w"], torch.zeros(40, 30))


def test_of_a_real_pruner(tmp_path: Path) -> None:
    model = net(inputs=300)
    pruner = pw.Pruner(model, criterion="magnitude", targets="0.weight")
    pruner.prune(0.9)
    pw.save(pruner, tmp_path / "f", values="codebook", size=16)
    found = pw.load(tmp_path / "f")
    assert len(found["0.weight"].unique()) == 17
    assert torch.equal(found["3.weight"], model.get_parameter("3.weight"))  # no target
    seen = inspect(tmp_path / "f").report
    assert pruner.report is not None
    assert seen is not None
    assert str(seen) == str(pruner.report)
