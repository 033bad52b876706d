"""docs/format.md says enough to write another reader: its own one reads what we write, without prunewald or torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from prunewald.storage import load, mask_file, save

from .helpers import ALL_DTYPES, holding, noise, pruner, raw

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reader() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(PAGE.split("```python\n")[1].split("```")[0], found)
    return found


def same(reader: dict[str, Any], path: Path) -> bool:
    ours, theirs = load(path), reader["read"](path)
    return ours.keys() == theirs.keys() and all(
        theirs[name][1:] == (list(tensor.shape), raw(tensor)) for name, tensor in ours.items()
    )


def weights(keep: float) -> Any:
    torch.manual_seed(0)
    mask = torch.rand(60, 50) < keep
    weight = torch.where(mask, torch.randn(60, 50), 0.0)
    model = holding(w=weight, w16=weight.bfloat16(), w64=weight.double(), b=torch.randn(60), tied=weight)
    return pruner(model, {"w": mask, "w16": mask, "w64": mask})


@pytest.mark.parametrize("values", [None, "float32", "float16", "bfloat16", "int8", "int4", "codebook"])
@pytest.mark.parametrize("codec", ["auto", "raw", "huffman", "ans"])
def test_values(tmp_path: Path, reader: dict[str, Any], values: Any, codec: Any) -> None:
    save(weights(0.5), tmp_path / "f", values=values, codec=codec)
    assert same(reader, tmp_path / "f")


@pytest.mark.parametrize("keep", [0.0, 0.003, 0.1, 0.5, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("positions", ["auto", "gaps", "ans", "bits"])
def test_positions(tmp_path: Path, reader: dict[str, Any], keep: float, positions: Any) -> None:
    save(weights(keep), tmp_path / "f", values="codebook", positions=positions)
    assert same(reader, tmp_path / "f")


def test_far_gaps(tmp_path: Path, reader: dict[str, Any]) -> None:
    weight = torch.zeros(100_000)
    weight[[3, 4, 5, 70_000, 99_999]] = 1
    weight[80_000:80_500] = 2
    for positions in ("gaps", "ans"):
        save(holding(w=weight), tmp_path / "f", positions=positions)
        assert same(reader, tmp_path / "f")


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_dtypes(tmp_path: Path, reader: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    many, few = noise(dtype, 300), noise(dtype, 3)
    model = holding(many=many, few=few[torch.randint(3, (400,))], one=noise(dtype, 1).view(()), none=noise(dtype, 0, 3))
    save(model, tmp_path / "f")
    assert same(reader, tmp_path / "f")


def test_masks(tmp_path: Path, reader: dict[str, Any]) -> None:
    torch.manual_seed(0)
    masks = {f"w{keep}": torch.rand(30, 40) < keep for keep in (0, 0.01, 0.2, 0.8, 1)}
    for positions in ("auto", "gaps", "ans", "bits"):
        mask_file.save(masks, tmp_path / "f", positions=positions)
        found = reader["read_masks"](tmp_path / "f")
        assert list(found) == list(masks)
        assert all((found[name] == mask.numpy()).all() for name, mask in masks.items())
