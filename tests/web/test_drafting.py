"""The data of a page: as the schema says, and true of the Pruner."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald import web
from prunewald.statistics import wald_test
from prunewald.web import planes
from prunewald.web.encoding import embedded
from prunewald.web.rendering import render
from tests.web.helpers import net, train, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def check(data: Any) -> None:
    """Data are as the schema in the package says."""
    jsonschema = pytest.importorskip("jsonschema", reason="pip install 'prunewald[dev]'")
    schema = json.loads(files("prunewald.web").joinpath("static/schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(embedded(data)))


def embedded_data(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take small models for large ones."""
    monkeypatch.setattr(planes, "EXACT", 100)


def test_a_pruner_s_data_are_as_the_schema_says(tmp_path: Path) -> None:
    pruner = trained(schedule=pw.Cubic(0.8, begin=50, end=110, every=10))
    pw.save(pruner, tmp_path / "model.pw")
    accuracies = {"ABS": {0.0: 0.8, 0.9: 0.6}, "M&U": {0.0: 0.8, 0.9: 0.7}}
    given: dict[str, Any] = {"inputs": torch.zeros(3, 1, 12, 12), "file": tmp_path / "model.pw"}
    data = web.of_pruner(pruner, accuracies=accuracies, settings={"seed": 3}, **given)
    check(data)
    assert [name for name, section in data.items() if "why" in section] == []
    assert embedded_data(render(data)) == json.loads(json.dumps(data))
    assert data["settings"]["groups"][0] == {"name": "run", "rows": [["seed", "3"]]}
    assert data["history"]["prunings"][-1][1:] == [0.8, pytest.approx(0.8, abs=1e-3)]


def test_a_large_model_s_data_are_as_the_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)
    data = web.of_pruner(trained())
    check(data)
    first = data["planes"]["planes"][0]
    assert not data["planes"]["exact"]
    assert (first["image"]["height"], first["image"]["width"], first["image"]["of"]) == (3, 3, 6)
    assert (first["mask"]["rows"], first["mask"]["columns"], first["mask"]["level"]) == (6, 9, 0.9)


def test_a_section_that_cannot_be_had_says_why() -> None:
    data = web.of_pruner(pw.Pruner(net(), criterion="magnitude"))
    check(data)
    reasons = {name: section["why"] for name, section in data.items() if "why" in section}
    assert set(reasons) == {"accuracy", "planes", "file", "history"}
    assert "accuracies=" in reasons["accuracy"]
    assert "no sigma" in reasons["planes"]
    assert "file='model.pw'" in reasons["file"]
    assert "no schedule" in reasons["history"]
    assert "inputs=x" in data["layers"]["macs"]


def test_the_table_is_the_report() -> None:
    pruner = trained()
    before = web.look(pruner)
    report = pruner.prune(0.9)
    data = web.of_pruner(pruner, before=before, inputs=torch.zeros(2, 1, 12, 12))
    rows = data["layers"]["rows"]
    assert [(row["name"], row["weights"], row["kept"]) for row in rows] == [
        (r.name, r.weights, r.kept) for r in report.rows
    ]
    assert [row["overlap"] for row in rows] == pytest.approx([r.overlap for r in report.rows])
    uses = [100, 1, 1]  # places of the 3x3 kernel in an image of 12x12
    assert [row["macs"] for row in rows] == [
        [u * r.weights, u * r.kept] for u, r in zip(uses, report.rows, strict=True)
    ]
    assert data["planes"] is before
    assert data["planes"]["levels"] == [percent / 100 for percent in range(100)]
    assert data["planes"]["kept"][90] == [row.kept for row in report.rows]


def test_before_the_first_pruning_the_table_is_what_one_would_do() -> None:
    data = web.of_pruner(trained())
    assert data["layers"]["dry_run"]
    assert sum(row["kept"] for row in data["layers"]["rows"]) == pytest.approx(0.1 * 1440, abs=1)


def test_masks_from_elsewhere_are_a_table_too() -> None:
    pruner = trained()
    masks = {name: torch.arange(mask.numel()).view(mask.shape) % 2 == 0 for name, mask in pruner.masks.items()}
    pruner.set_masks(masks)
    data = web.of_pruner(pruner)
    assert [row["kept"] for row in data["layers"]["rows"]] == [int(mask.sum()) for mask in masks.values()]
    assert "masks that were set" in data["layers"]["criterion"]


def test_p_values_are_there_where_sigma_is_a_standard_error() -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 1, bias=False)
    x = torch.randn(400, 20)
    y = x[:, :3].sum(1, keepdim=True) + torch.randn(400, 1)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    batches = [(x, y)]
    errors = pw.uncertainty.InverseFisher().estimate(model, batches, nn.functional.mse_loss)
    data = web.of_pruner(pw.Pruner(model, uncertainty=errors, scope="layer"))
    assert data["planes"]["standard_error"]
    p = wald_test(model.weight.detach(), errors["weight"]).p
    expected = [int(((p >= at / 20) & (p < (at + 1) / 20)).sum()) for at in range(20)]
    assert data["planes"]["planes"][0]["p"] == expected
    assert 3 <= expected[0] < 8


def test_groups_have_a_plane_and_no_sliders() -> None:
    data = web.of_pruner(trained(pattern=pw.Filter(), targets="0.weight"))
    check(data)
    assert data["planes"]["levels"] == []
    assert "in groups" in data["planes"]["notes"][0]


def test_another_criterion_is_drawn_beside_tau() -> None:
    data = web.of_pruner(trained(criterion="wanda"))
    assert data["planes"]["notes"][0] == "drawn for MagnitudeUncertainty(); the Pruner itself scores by Wanda()"
    assert data["planes"]["lam"] == 1


def test_a_packed_file_has_its_bytes_and_its_report(tmp_path: Path) -> None:
    pruner = trained()
    report = pruner.prune(0.9)
    pw.save(pruner, tmp_path / "model.pw")
    data = web.of_file(tmp_path / "model.pw")
    check(data)
    assert data["file"]["size"] == (tmp_path / "model.pw").stat().st_size
    assert [row["kept"] for row in data["layers"]["rows"]] == [row.kept for row in report.rows]
    assert {name for name, section in data.items() if "why" in section} == {"accuracy", "planes", "history"}


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        ([0.8, 0.9], "accuracies="),
        ({}, "is empty"),
        ({"M&U": 0.9}, r"accuracies\['M&U'\]"),
        ({"M&U": {}}, "'M&U' has no accuracies"),
        ({"M&U": {1.5: 0.9}}, "sparsity 1.5"),
        ({"M&U": {0.9: []}}, "'M&U' has no accuracy at 0.9"),
        ({"M&U": {0.9: "good"}}, "accuracy of 'M&U' at 0.9='good'"),
        ({"ABS": {0.9: [0.5, 0.6]}, "M&U": {0.9: 0.7}}, "pair by pair"),
    ],
)
def test_accuracies_in_the_wrong_shape_are_refused(accuracies: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        web.of_pruner(trained(steps=1), accuracies=accuracies)


def test_a_pruner_that_can_tell_nothing_is_refused() -> None:
    pruner = trained(steps=2)
    pruner.detach()
    with pytest.raises(ValueError, match=r"detached.*before detach"):
        web.of_pruner(pruner)
    other = trained(steps=2)
    other.model.to("meta")
    with pytest.raises(ValueError, match="meta"):
        web.look(other)


def test_what_is_of_another_model_is_refused(tmp_path: Path) -> None:
    pruner, other = trained(), pw.Pruner(nn.Linear(4, 4), criterion="magnitude")
    pw.save(other, tmp_path / "other.pw")
    with pytest.raises(ValueError, match=r"other\.pw' holds none.*pw\.save\(pruner"):
        web.of_pruner(pruner, file=tmp_path / "other.pw")
    sigma = {name: torch.rand(param.shape) for name, param in other.model.named_parameters()}
    other.detach()
    for before in (web.look(pw.Pruner(other.model, uncertainty=sigma)), {"a": 1}, "before"):
        with pytest.raises(ValueError, match=r"before=.*pw\.web\.look\(pruner\)"):
            web.of_pruner(pruner, before=before)  # type: ignore[arg-type]


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3\).*Sequential"):
        web.of_pruner(trained(steps=2), inputs=torch.zeros(2, 3))


def test_nothing_of_the_model_is_changed() -> None:
    pruner = trained()
    before = {name: tensor.clone() for name, tensor in pruner.model.state_dict().items()}
    pruner.model.train()
    state = pruner.state_dict()["steps"]
    web.of_pruner(pruner, inputs=torch.zeros(2, 1, 12, 12))
    assert all(torch.equal(before[name], tensor) for name, tensor in pruner.model.state_dict().items())
    assert (pruner.sparsity, pruner.report, pruner.state_dict()["steps"]) == (0, None, state)
    assert all(module.training for module in pruner.model.modules())
    train(pruner.model, pruner.optimizers[0], range(3))
