"""Where the bytes are: the sums are right, and near the bound."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import prunewald as pw
from prunewald.pruning.report import Report, TensorReport
from prunewald.storage import inspect, load, mask_file, save
from prunewald.storage.positions import bound

from .helpers import holding, pruned, pruner


@pytest.fixture(scope="module", params=[0.9, 0.99])
def million(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    mask = torch.rand(1000, 1000) > request.param
    return pruner(holding(w=torch.where(mask, torch.randn(1000, 1000), 0.0)), {"w": mask})


@pytest.mark.parametrize(("codec", "share"), [("auto", 1.01), ("ans", 1.01), ("huffman", 1.03)])
def test_a_million_weights_are_near_the_bound(tmp_path: Path, million: Any, codec: Any, share: float) -> None:
    save(million, tmp_path / "f", values="codebook", size=32, codec=codec)
    found = inspect(tmp_path / "f")
    (row,) = found.tensors
    weight = load(tmp_path / "f")["w"]
    values, counts = weight[weight != 0].unique(return_counts=True)
    entropy = -(counts * (counts / counts.sum()).log2()).sum()
    assert row.codebook == 4 * len(values) == 128
    least = bound(weight.numel(), int(counts.sum())) + float(entropy) + 8 * row.codebook
    assert 8 * row.bound == pytest.approx(least, rel=1e-5)
    assert row.bound <= row.payload < share * row.bound
    assert found.header + row.overhead <= 1000 + 500


def test_the_bytes_add_up(tmp_path: Path) -> None:
    source = pruned(inputs=100)
    save(source, tmp_path / "f", values="int8")
    found = inspect(tmp_path / "f")
    size = (tmp_path / "f").stat().st_size
    assert found.size == size
    assert found.header + sum(row.payload + row.overhead for row in found.tensors) == size
    # What is no tensor's: length, braces, four strings, padding.
    assert 100 < found.header < 250
    assert found.total.weights == sum(t.numel() for t in source.model.state_dict().values())


def test_overhead_of_a_model_with_a_report(tmp_path: Path) -> None:
    layers = [torch.nn.Linear(20, 20) for _ in range(40)]
    model = torch.nn.Sequential(*layers)
    pruner = pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion="magnitude", scope="layer")
    pruner.prune(0.5)
    pw.save(pruner, tmp_path / "f")
    found = inspect(tmp_path / "f")
    assert found.header + found.total.overhead <= 1000 + 500 * 80
    assert found.report is not None
    assert [row.kept for row in found.report.rows] == [200] * 40


def test_it_prints_a_table(tmp_path: Path) -> None:
    save(pruned(inputs=100), tmp_path / "f", values="codebook")
    text = str(inspect(tmp_path / "f"))
    for word in (
        "format 1",
        "positions",
        "codebook",
        "overhead",
        "bits a weight",
        "bound",
        "0.weight",
        "30x100",
        "total",
    ):
        assert word in text
    widths = {len(line) for line in text.splitlines()[1:]}
    assert len(widths) == 1
    json.dumps(inspect(tmp_path / "f").to_dict(), allow_nan=False)


def test_notebooks_show_it_as_html(tmp_path: Path) -> None:
    save(holding(**{"a<b": torch.zeros(40)}, total=torch.ones(3, 2)), tmp_path / "f")
    found = inspect(tmp_path / "f")
    shown = found._repr_html_()
    assert "a&lt;b" in shown
    assert "a<b" not in shown
    assert all(f">{cell}<" in shown for cell in ("bits a weight", "40", "3x2", f"{found.total.payload:,}"))
    assert str(found).splitlines()[0] in shown


def test_odd_tensors(tmp_path: Path) -> None:
    save(holding(none=torch.ones(0, 3), one=torch.tensor(3)), tmp_path / "f")
    text = str(inspect(tmp_path / "f"))
    assert "0x3" in text
    assert (
        json.loads(json.dumps(inspect(tmp_path / "f").to_dict(), allow_nan=False))["tensors"][0]["bits_per_weight"]
        is None
    )


def test_masks(tmp_path: Path) -> None:
    masks = {"w": torch.rand(100, 100) < 0.1, "v": torch.ones(3, dtype=torch.bool)}
    mask_file.save(masks, tmp_path / "f")
    found = inspect(tmp_path / "f")
    assert [(row.stored, row.kept) for row in found.tensors] == [("mask", int(m.sum())) for m in masks.values()]
    assert found.header + found.total.payload + found.total.overhead == (tmp_path / "f").stat().st_size


def test_what_a_file_says_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\r\x9b"
    source = pruner(holding(**{evil: torch.ones(3, 3)}), {})
    source.report = Report([TensorReport(evil, (3, 3), 9, 9, None, None, 1.0, 1.0)], evil, evil, evil, [evil])
    save(source, tmp_path / "f")
    found = inspect(tmp_path / "f")
    assert found.tensors[0].name == evil
    text = f"{found}{found.report}"
    assert "\\x1b[2J" in text
    assert all(char.isprintable() for char in text.replace("\n", ""))


def test_a_long_name_is_not_printed_for_every_tensor(tmp_path: Path) -> None:
    names = {"x" * 4000: torch.tensor(1)} | {f"n{i}": torch.tensor(i) for i in range(300)}
    save(holding(**names), tmp_path / "f")
    found = inspect(tmp_path / "f")
    assert len(str(found)) < 300 * 400
    assert found.tensors[0].name == "x" * 4000
