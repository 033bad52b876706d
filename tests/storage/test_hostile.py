"""Files that are damaged or lie."""

import json
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from prunewald.storage import PackedFileError, load, save
from prunewald.storage.container import write

from .helpers import holding, identical, pruned, pruner

Files = Callable[[bytes], Path]


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    mask = torch.tensor([True, False, False, True, False] * 3).view(5, 3)
    model = holding(w=torch.arange(1.0, 16).view(5, 3) * mask, b=torch.ones(3), n=torch.tensor(7))
    save(pruner(model, {"w": mask}), tmp_path / "good.pw")
    return (tmp_path / "good.pw").read_bytes()


@pytest.fixture
def bad(tmp_path: Path) -> Files:
    def make(content: bytes) -> Path:
        path = tmp_path / "bad.pw"
        path.write_bytes(content)
        return path

    return make


def refused(path: Path, reason: str) -> None:
    with pytest.raises(PackedFileError, match=f"bad.pw: .*{reason}"):
        load(path)


def test_every_truncation(good: bytes, bad: Files) -> None:
    for length in range(len(good)):
        refused(bad(good[:length]), "not a whole safetensors file")


def test_more_than_there_should_be(good: bytes, bad: Files) -> None:
    refused(bad(good + b"\0"), "not a whole safetensors file")


def test_a_flipped_bit_in_every_byte(good: bytes, bad: Files) -> None:
    flip = random.Random(0)
    for place in range(len(good)):
        content = bytearray(good)
        content[place] ^= 1 << flip.randrange(8)
        with pytest.raises(PackedFileError, match=r"bad\.pw"):
            load(bad(bytes(content)))


def test_random_damage_is_found_or_harmless(good: bytes, bad: Files) -> None:
    chance = random.Random(1)
    state = load(bad(good))
    for _ in range(500):
        content = bytearray(good)
        start = chance.randrange(len(good))
        stop = start + chance.randrange(1, 20)
        content[start:stop] = chance.choice([b"", b"9" * 8, chance.randbytes(stop - start), content[:start]])
        with suppress(PackedFileError):
            assert identical(load(bad(bytes(content))), state)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04" * 20, b"\x80\x02}q\x00.", b"\xff" * 64])
def test_no_safetensors_file(bad: Files, content: bytes) -> None:
    refused(bad(content), "not a whole safetensors file")


def test_a_safetensors_file_of_others(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file({"w": torch.ones(2)}, tmp_path / "bad.pw", metadata=metadata)
        refused(tmp_path / "bad.pw", "not one that prunewald wrote")


def edited(good: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    start = 8 + int.from_bytes(good[:8], "little")
    header = json.loads(good[8:start])
    edit(header)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + good[start:]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("version", "1", "format version '1'; this prunewald reads version '0'"),
        ("version", None, "format version None"),
        ("format", "other", "not one that prunewald wrote"),
        ("sha256", "0" * 64, "checksum"),
        ("sha256", None, "the metadata has"),
        ("index", "[]", "checksum"),
        ("index", None, "the metadata has"),
        ("further", "x", "the metadata has"),
    ],
)
def test_metadata(good: bytes, bad: Files, key: str, value: str | None, reason: str) -> None:
    def edit(header: dict[str, Any]) -> None:
        header["__metadata__"].pop(key, None)
        if value is not None:
            header["__metadata__"][key] = value

    refused(bad(edited(good, edit)), reason)


def test_a_name_twice_in_the_header(good: bytes, bad: Files) -> None:
    start = 8 + int.from_bytes(good[:8], "little")
    entry = json.dumps(json.loads(good[8:start])["dense/b"])
    head = good[8:start].rstrip()[:-1] + f',"dense/b":{entry}}}'.encode()
    refused(bad(len(head).to_bytes(8, "little") + head + good[start:]), "the name 'dense/b' comes twice")


def test_a_tensor_under_another_name(good: bytes, bad: Files) -> None:
    def edit(header: dict[str, Any]) -> None:
        header["dense/c"] = header.pop("dense/b")

    refused(bad(edited(good, edit)), "checksum")


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
    "huge": ([entry(shape=[2**40])], PARTS, "takes 137438953472 bytes"),
    "huger": ([entry(shape=[2**62] * 50)], PARTS, "bytes, not"),
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
    write(tmp_path / "bad.pw", index if isinstance(index, str) else json.dumps(index), parts)
    tracemalloc.start()
    try:
        refused(tmp_path / "bad.pw", reason)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


def test_offsets_that_are_not_aligned(bad: Files) -> None:
    """Legal for safetensors, and torch cannot view it: read or refused, never a crash."""
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
        "__metadata__": {"format": "prunewald", "version": "0", "index": "[]", "sha256": ""},
    }
    head = json.dumps(header).encode()
    refused(bad(len(head).to_bytes(8, "little") + head + bytes(5)), "")


def test_the_error_is_a_value_error_with_file_and_cause(tmp_path: Path) -> None:
    save(pruned(), tmp_path / "bad.pw")
    (tmp_path / "bad.pw").write_bytes(b"")
    with pytest.raises(ValueError, match=str(tmp_path)) as caught:
        load(tmp_path / "bad.pw")
    assert caught.value.__cause__ is not None
