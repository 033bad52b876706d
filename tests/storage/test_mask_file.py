"""Files of masks: what comes back, and what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prunewald import storage
from prunewald.storage import PackedFileError, inspect
from prunewald.storage.container import write
from prunewald.storage.mask_file import load, save

from .helpers import identical, net, pruned

shapes = st.lists(st.integers(0, 5), max_size=4)


def some() -> dict[str, Tensor]:
    mask = torch.tensor([True, False, False, True, False] * 3).view(5, 3)
    return {"w": mask, "layer.0.ü": torch.ones(2, 2, dtype=torch.bool), "none": torch.zeros(9, dtype=torch.bool)}


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    save(some(), tmp_path / "good.pw")
    return (tmp_path / "good.pw").read_bytes()


def refused(path: Path, content: bytes, reason: str) -> None:
    (path / "bad.pw").write_bytes(content)
    with pytest.raises(PackedFileError, match=f"bad.pw: .*{reason}"):
        load(path / "bad.pw")


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), shapes, min_size=1, max_size=4))
def test_what_is_saved_comes_back(tmp_path_factory: pytest.TempPathFactory, found: dict[str, list[int]]) -> None:
    path = tmp_path_factory.mktemp("masks") / "f"
    masks = {name: torch.rand(shape) < 0.5 for name, shape in found.items()}
    save(masks, path)
    again = load(path)
    assert list(again) == list(masks)
    assert identical(again, masks)


@pytest.mark.parametrize(
    ("positions", "least", "most"), [("auto", 1, 1.01), ("ans", 1, 1.01), ("gaps", 1, 1.03), ("bits", 2, 3)]
)
def test_near_the_entropy(tmp_path: Path, positions: Any, least: float, most: float) -> None:
    torch.manual_seed(0)
    masks = {"w": torch.rand(1000, 1000) < 0.1}
    save(masks, tmp_path / "f", positions=positions)
    (row,) = inspect(tmp_path / "f").tensors
    assert least <= row.positions / row.bound < most
    assert identical(load(tmp_path / "f"), masks)


def test_the_same_masks_give_the_same_file(tmp_path: Path, good: bytes) -> None:
    save({name: mask.T.contiguous().T if mask.dim() == 2 else mask for name, mask in some().items()}, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == good


def test_bools_with_other_bytes(tmp_path: Path) -> None:
    odd = torch.tensor([2, 0, 255], dtype=torch.uint8).view(torch.bool)
    save({"w": odd}, tmp_path / "f")
    assert load(tmp_path / "f")["w"].tolist() == [True, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_from_a_gpu(tmp_path: Path, good: bytes) -> None:
    save({name: mask.cuda() for name, mask in some().items()}, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == good


def test_every_truncation(tmp_path: Path, good: bytes) -> None:
    for length in range(len(good)):
        refused(tmp_path, good[:length], "not a whole safetensors file")
    refused(tmp_path, good + b"\0", "not a whole safetensors file")


def test_a_flipped_bit_in_every_byte(tmp_path: Path, good: bytes) -> None:
    flip = random.Random(0)
    for place in range(len(good)):
        content = bytearray(good)
        content[place] ^= 1 << flip.randrange(8)
        refused(tmp_path, bytes(content), "")


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path, good: bytes, monkeypatch: Any) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save({"v": torch.ones(2, dtype=torch.bool)}, tmp_path / "good.pw")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("good.pw", good)]


def test_a_model_where_masks_are_meant_and_the_other_way_round(tmp_path: Path) -> None:
    source = pruned()
    storage.save(source, tmp_path / "model.pw")
    save(source.masks, tmp_path / "masks.pw")
    with pytest.raises(PackedFileError, match=r"model.pw: this file holds a model, not masks: read it with pw.load"):
        load(tmp_path / "model.pw")
    model = net(seed=1)
    for call in (storage.load, lambda path: storage.load(path, into=model)):
        with pytest.raises(PackedFileError, match=r"masks.pw: this file holds masks, not a model: .* pw.masks.load"):
            call(tmp_path / "masks.pw")
    assert identical(model.state_dict(), net(seed=1).state_dict())


def row(**changes: Any) -> dict[str, Any]:
    return {"name": "w", "shape": [3, 3], "kept": 2} | changes


MASK = torch.tensor([0, 0, 255, 3, 0], dtype=torch.uint8)  # raw bytes: the first two
STORED = {"mask/w": MASK}

# Index, tensors, and why not: all with a right checksum.
LIES: dict[str, tuple[Any, dict[str, Tensor], str]] = {
    "no index": ({}, {}, "neither"),
    "a number": (1, {}, "neither"),
    "no JSON": ("{", {}, "Expecting"),
    "no list": ({"masks": {}}, {}, "neither"),
    "more": ({"masks": [], "model": []}, {}, "neither"),
    "no object": ({"masks": [1]}, STORED, "makes no sense"),
    "name a number": ({"masks": [row(name=1)]}, STORED, "makes no sense"),
    "shape negative": ({"masks": [row(shape=[-3, -3])]}, STORED, "makes no sense"),
    "shape true": ({"masks": [row(shape=[True, 9])]}, STORED, "makes no sense"),
    "shape endless": ({"masks": [row(shape=[2**62] * 65)]}, STORED, "65 dimensions.*64"),
    "name endless": ({"masks": [row(name="w" * 4097)]}, STORED, "4,097 bytes.*4,096"),
    "kept fractional": ({"masks": [row(kept=2.0)]}, STORED, "makes no sense"),
    "kept missing": ({"masks": [{"name": "w", "shape": [9]}]}, STORED, "makes no sense"),
    "further key": ({"masks": [row(more=1)]}, STORED, "makes no sense"),
    "twice": ({"masks": [row(), row()]}, STORED, "'w' comes twice"),
    "mask missing": ({"masks": [row()]}, {}, "disagree about 'mask/w'"),
    "mask too many": ({"masks": [row()]}, STORED | {"mask/v": MASK}, "disagree about 'mask/v'"),
    "too many places": ({"masks": [row(kept=1)]}, STORED, "'w': 1 values for a mask of 2 places"),
    "padding set": ({"masks": [row(shape=[3, 4])]}, {"mask/w": MASK.index_fill(0, torch.tensor(4), 16)}, "padding"),
    "too short": ({"masks": [row(shape=[3, 6])]}, STORED, "'w': 3 symbols of a byte each in 2 bytes"),
    "huge": ({"masks": [row(shape=[2**40])]}, STORED, "would take 1,099,511,627,776 bytes"),
    "huger": ({"masks": [row(shape=[2**62] * 50)]}, STORED, "would take"),
    "another dtype": ({"masks": [row()]}, {"mask/w": MASK.to(torch.int8)}, "int8"),
    "two dimensions": ({"masks": [row()]}, {"mask/w": MASK.view(1, 5)}, "not as bytes"),
    "more than there are": ({"masks": [row(kept=10)]}, STORED, "10 places of 9"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies(tmp_path: Path, lie: str) -> None:
    index, tensors, reason = LIES[lie]
    write(tmp_path / "f", index if isinstance(index, str) else json.dumps(index), tensors)
    refused(tmp_path, (tmp_path / "f").read_bytes(), reason)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "pruner": (pruned(), TypeError, "SimpleNamespace.*pruner.masks"),
    "tensor": (torch.ones(2), TypeError, "Tensor.*pruner.masks"),
    "nothing": ({}, ValueError, "empty.*pruner.masks"),
    "key": ({1: torch.ones(2).bool()}, ValueError, "key 1 .*pruner.masks"),
    "list": ({"w": [True]}, ValueError, "'w' is list.*bool"),
    "float": ({"w": torch.ones(2)}, ValueError, "'w' is torch.float32.*bool"),
    "meta": ({"w": torch.ones(2, device="meta").bool()}, ValueError, "'w' is .* on meta"),
    "name too long": ({"w" * 4097: torch.ones(2).bool()}, ValueError, "4,097 bytes.*4,096"),
    "dimensions": ({"w": torch.ones([1] * 65).bool()}, ValueError, "'w'.*65 dimensions.*64"),
    "sparse": ({"w": torch.eye(2).bool().to_sparse()}, ValueError, "'w' is .*sparse_coo"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_are_no_masks(tmp_path: Path, case: str) -> None:
    masks, kind, reason = BAD[case]
    with pytest.raises(kind, match=reason):
        save(masks, tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")
