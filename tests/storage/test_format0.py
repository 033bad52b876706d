"""Files of format 0: those that were written stay readable, and those that lie are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prunewald.storage import PackedFileError, inspect, load, mask_file
from prunewald.storage.container import read, write

from . import format0
from .helpers import allocating, identical, refused


def test_the_committed_model() -> None:
    assert read(format0.MODEL).version == "0"
    assert identical(load(format0.MODEL), format0.model().state_dict())
    fresh = format0.model()
    fresh.weight.zero_()  # type: ignore[operator]
    assert identical(load(format0.MODEL, into=fresh).state_dict(), format0.model().state_dict())


def test_the_committed_masks() -> None:
    none = {"none": torch.zeros(3, dtype=torch.bool)}
    assert identical(mask_file.load(format0.MASKS), format0.masks() | none)


def test_inspection() -> None:
    rows = {row.name: row for row in inspect(format0.MODEL).tensors}
    weight = rows["weight = tied"]
    assert (weight.kept, weight.positions, weight.values, weight.stored) == (30, 15, 120, "F32")
    assert [row.positions for row in inspect(format0.MASKS).tensors] == [15, 1]


def test_a_limit() -> None:
    with pytest.raises(PackedFileError, match=r"format0.bin: its tensors would take 17,\d+ bytes, more than 9,999"):
        load(format0.MODEL, max_bytes=9999)


def entry(**changes: Any) -> dict[str, Any]:
    return {"names": ["w"], "dtype": "F32", "shape": [3, 3], "kept": 2} | changes


VALUES = torch.ones(2)
MASK = torch.tensor([3, 0], dtype=torch.uint8)
MORE = torch.tensor([4, 0], dtype=torch.uint8)
PARTS = {"values/w": VALUES, "mask/w": MASK}
DENSE = {"dense/w": torch.ones(3, 3)}

# Index, tensors, and why not: all with a right checksum.
LIES: dict[str, tuple[Any, dict[str, Tensor], str]] = {
    "no list": ({}, {}, "not a list"),
    "no JSON": ("[", {}, "Expecting value"),
    "endless": ("[" * 100_000, {}, "recursion"),
    "long number": ("[" + "9" * 10_000 + "]", {}, ""),
    "no object": ([[]], PARTS, "makes no sense"),
    "no names": ([entry(names=[])], PARTS, "makes no sense"),
    "name a number": ([entry(names=[1])], PARTS, "makes no sense"),
    "names a string": ([entry(names="w")], PARTS, "makes no sense"),
    "dtype unknown": ([entry(dtype="F33")], PARTS, "makes no sense"),
    "shape negative": ([entry(shape=[-3, -3])], PARTS, "makes no sense"),
    "shape fractional": ([entry(shape=[3.0, 3])], PARTS, "makes no sense"),
    "shape true": ([entry(shape=[True, 9])], PARTS, "makes no sense"),
    "shape absurd": ([entry(shape=[2**63])], PARTS, "makes no sense"),
    "kept true": ([entry(kept=True)], PARTS, "makes no sense"),
    "kept negative": ([entry(kept=-1)], PARTS, "makes no sense"),
    "further key": ([entry(more=1)], PARTS, "makes no sense"),
    "no shape": ([{"names": ["w"], "dtype": "F32", "kept": 2}], PARTS, "makes no sense"),
    "key twice": (json.dumps([entry()]).replace('"kept"', '"kept": 1, "kept"'), PARTS, "'kept' comes twice"),
    "entry twice": ([entry(), entry()], PARTS, "'w' comes twice"),
    "tied to itself": ([entry(names=["w", "w"])], PARTS, "'w' comes twice"),
    "tied twice": ([entry(names=["w", "v"]), entry(names=["v"])], PARTS, "'v' comes twice"),
    "mask missing": ([entry()], {"values/w": VALUES}, "disagree about 'mask/w'"),
    "values missing": ([entry()], {"mask/w": MASK}, "disagree about 'values/w'"),
    "tensor too many": ([entry()], PARTS | DENSE, "disagree about 'dense/w'"),
    "stored the other way": ([entry(kept=None)], PARTS, "disagree about 'dense/w'"),
    "values of another dtype": ([entry(dtype="F16")], PARTS, "'w': stored as torch.float32"),
    "too few values": ([entry(kept=3)], PARTS, r"stored as torch.float32 \(2,\)"),
    "values not flat": ([entry()], PARTS | {"values/w": torch.ones(2, 1)}, "stored as"),
    "too many places": ([entry()], PARTS | {"mask/w": MASK + MORE}, "'w': 2 values for a mask of 3 places"),
    "padding set": ([entry(shape=[2, 3])], PARTS | {"mask/w": MASK[:1] + 64}, "'w': .*padding bits"),
    "mask too short": ([entry(shape=[3, 6])], PARTS, "takes 3 bytes"),
    "mask too long": ([entry(shape=[2, 4])], PARTS, "takes 1 bytes"),
    "mask of another dtype": ([entry()], PARTS | {"mask/w": MASK.to(torch.int8)}, "int8"),
    "huge": ([entry(shape=[2**40])], PARTS, "would take 4,398,046,511,104 bytes"),
    "huger": ([entry(shape=[2**62] * 50)], PARTS, "would take"),
    "dense of another shape": ([entry(kept=None, shape=[9])], DENSE, "stored as"),
    "dense of another dtype": ([entry(kept=None, dtype="I32")], DENSE, "stored as"),
    "bool of 2": (
        [entry(kept=None, dtype="BOOL", shape=[1])],
        {"dense/w": torch.tensor([2], dtype=torch.uint8).view(torch.bool)},
        "bytes other than 0 and 1",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies(tmp_path: Path, lie: str) -> None:
    index, parts, reason = LIES[lie]
    write(tmp_path / "bad.pw", index if isinstance(index, str) else json.dumps(index), parts, "0")
    with allocating(10_000_000):
        refused(tmp_path / "bad.pw", reason)


def row(**changes: Any) -> dict[str, Any]:
    return {"name": "w", "shape": [3, 3], "kept": 2} | changes


BITS = {"mask/w": MASK}
MASK_LIES: dict[str, tuple[Any, dict[str, Tensor], str]] = {
    "too many places": (row(kept=1), BITS, "'w': a mask of 2 places, where the index says 1"),
    "padding set": (row(shape=[1]), {"mask/w": MASK[:1]}, "'w': .*padding bits"),
    "too short": (row(shape=[3, 6]), BITS, "'w': .*takes 3 bytes"),
    "huge": (row(shape=[2**40]), BITS, "takes 137438953472 bytes"),
    "another dtype": (row(), {"mask/w": MASK.to(torch.int8)}, "int8"),
}


@pytest.mark.parametrize("lie", MASK_LIES)
def test_masks_that_lie(tmp_path: Path, lie: str) -> None:
    found, parts, reason = MASK_LIES[lie]
    write(tmp_path / "f", json.dumps({"masks": [found]}), parts, "0")
    with pytest.raises(PackedFileError, match=reason):
        mask_file.load(tmp_path / "f")
