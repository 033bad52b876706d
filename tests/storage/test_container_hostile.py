"""Files that are damaged or lie."""

import json
import random
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

from .helpers import allocating, holding, identical, pruned, pruner, refused

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
        ("version", "2", "format version '2'.* reads '1'"),
        ("version", "0", "format version '0'.* reads '1'"),
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
    plain = {"names": ["w"], "dtype": "F32", "shape": [3, 3], "kept": 2, "values": "F32", "bytes": [5, 0, 9]}
    return plain | changes


def model(*rows: Any) -> dict[str, Any]:
    return {"tensors": list(rows)}


def blob(*numbers: int, then: bytes = b"") -> Tensor:
    return torch.tensor([*numbers, *then], dtype=torch.uint8)


ONES = torch.ones(2).numpy().tobytes()
BITS = (0, 0, 255, 3, 0)  # raw bytes of a mask: the first two elements
GOOD = {"packed/w": blob(*BITS, 0, then=ONES)}
DENSE = {"dense/w": torch.ones(3, 3)}
PLAIN = {"names": ["w"], "dtype": "F32", "shape": [3, 3]}
NONE = {"packed/w": blob()}
REPORT = {"criterion": "a", "uncertainty": "b", "scope": "c", "notes": [], "rows": []}


def gaps(*numbers: int, escapes: int = 0, low: int = 0, kind: int = 1, then: bytes = ONES) -> dict[str, Tensor]:
    return {"packed/w": blob(kind, low, *escapes.to_bytes(8, "little"), *numbers, 0, then=then)}


def coded(values: str, book: bytes, *numbers: int) -> tuple[Any, dict[str, Tensor]]:
    row = entry(values=values, bytes=[5, len(book), len(numbers)])
    return model(row), {"packed/w": blob(*BITS, then=book + bytes(numbers))}


# Index, tensors, and why not: all with a right checksum.
LIES: dict[str, tuple[Any, dict[str, Tensor], str]] = {
    "no object": ([], {}, "neither one of a model nor one of masks"),
    "no tensors": ({}, {}, "neither"),
    "more than tensors": (model() | {"more": 1}, {}, "neither"),
    "no JSON": ("{", {}, "Expecting"),
    "endless": ("[" * 100_000, {}, "recursion"),
    "long number": ("[" + "9" * 10_000 + "]", {}, ""),
    "no entry": (model([]), GOOD, "makes no sense"),
    "no names": (model(entry(names=[])), GOOD, "makes no sense"),
    "name a number": (model(entry(names=[1])), GOOD, "makes no sense"),
    "names a string": (model(entry(names="w")), GOOD, "makes no sense"),
    "dtype unknown": (model(entry(dtype="F33")), GOOD, "makes no sense"),
    "shape negative": (model(entry(shape=[-3, -3])), GOOD, "makes no sense"),
    "shape fractional": (model(entry(shape=[3.0, 3])), GOOD, "makes no sense"),
    "shape true": (model(entry(shape=[True, 9])), GOOD, "makes no sense"),
    "shape absurd": (model(entry(shape=[2**63])), GOOD, "makes no sense"),
    "shape endless": (model(entry(shape=[2**62] * 65)), GOOD, "65 dimensions.*64"),
    "name endless": (model(entry(names=["w" * 4097])), GOOD, "4,097 bytes.*4,096"),
    "name endless in bytes": (model(entry(names=["ü" * 2049])), GOOD, "4,098 bytes.*4,096"),
    "name endless behind": (model(entry(names=["w", "v" * 5000])), GOOD, "5,000 bytes.*4,096"),
    "kept true": (model(entry(kept=True)), GOOD, "makes no sense"),
    "kept negative": (model(entry(kept=-1)), GOOD, "makes no sense"),
    "kept null": (model(entry(kept=None)), GOOD, "makes no sense"),
    "kept alone": (model(PLAIN | {"kept": 2}), GOOD, "makes no sense"),
    "values unknown": (model(entry(values="F33")), GOOD, "makes no sense"),
    "two sections": (model(entry(bytes=[5, 9])), GOOD, "makes no sense"),
    "section negative": (model(entry(bytes=[5, -1, 10])), GOOD, "makes no sense"),
    "further key": (model(entry(more=1)), GOOD, "makes no sense"),
    "key twice": (json.dumps(model(entry())).replace('"kept"', '"kept": 1, "kept"'), GOOD, "'kept' comes twice"),
    "entry twice": (model(entry(), entry()), GOOD, "'w' comes twice"),
    "tied to itself": (model(entry(names=["w", "w"])), GOOD, "'w' comes twice"),
    "tied twice": (model(entry(names=["w", "v"]), entry(names=["v"])), GOOD, "'v' comes twice"),
    "tensor missing": (model(entry()), {}, "disagree about 'packed/w'"),
    "tensor too many": (model(entry()), GOOD | DENSE, "disagree about 'dense/w'"),
    "stored the other way": (model(PLAIN), GOOD, "disagree about 'dense/w'"),
    "dense of another shape": (model(PLAIN | {"shape": [9]}), DENSE, "stored as"),
    "dense of another dtype": (model(PLAIN | {"dtype": "I32"}), DENSE, "stored as"),
    "bool of 2": (
        model({"names": ["w"], "dtype": "BOOL", "shape": [1]}),
        {"dense/w": torch.tensor([2], dtype=torch.uint8).view(torch.bool)},
        "bytes other than 0 and 1",
    ),
    "not bytes": (model(entry()), {"packed/w": GOOD["packed/w"].to(torch.int8)}, "'w': stored as torch.int8"),
    "sections too short": (model(entry(bytes=[5, 0, 8])), GOOD, "where the index says 13 bytes"),
    "sections too long": (model(entry(bytes=[5, 0, 2**40])), GOOD, "where the index says"),
    "huge": (model(entry(shape=[2**40])), GOOD, "would take 4,398,046,511,104 bytes, more than 1,073,741,824"),
    "huger": (model(entry(shape=[2**62] * 50)), GOOD, "would take"),
    "huge and empty": (model(entry(shape=[2**62, 2**62, 0], kept=0, bytes=[0, 0, 1])), {"packed/w": blob(0)}, "'w'"),
    "more kept than there are": (model(entry(kept=10)), GOOD, "10 values for 9 places"),
    "too many kept": (model(entry(kept=3)), GOOD, "3 values of F32 take 12 bytes, not 8"),
    "values of another dtype": (model(entry(values="F16", kept=4)), GOOD, "4 values for a mask of 2 places"),
    "values that are wider": (model(entry(dtype="F16")), GOOD, "values of F32 for a tensor of F16"),
    "values of integers": (model(entry(values="I32")), GOOD, "values of I32 for a tensor of F32"),
    "no values": (model(entry(bytes=[14, 0, 0])), GOOD, "values of an unknown kind"),
    "values of kind 2": (model(entry()), {"packed/w": blob(*BITS, 2, then=ONES)}, "values of an unknown kind"),
    "planes cut short": (model(entry()), {"packed/w": blob(*BITS, 1, then=ONES)}, "cut short"),
    "planes too long": (
        model(entry(bytes=[5, 0, 33])),
        {"packed/w": blob(*BITS, 1, then=(2**63).to_bytes(8, "little") * 4)},
        "longer than they say",
    ),
    "a codebook for nothing": (model(entry(bytes=[5, 1, 8])), GOOD, "values of an unknown kind|a codebook"),
    "positions too many": (model(entry(shape=[3, 4])), {"packed/w": blob(0, 0, 255, 7, 0, 0, then=ONES)}, "3 places"),
    "positions missing": (model(entry(bytes=[0, 0, 9])), {"packed/w": blob(0, then=ONES)}, "positions are missing"),
    "positions of kind 3": (model(entry()), {"packed/w": blob(3, 0, 255, 3, 0, 0, then=ONES)}, "positions of an unk"),
    "padding set": (model(entry()), {"packed/w": blob(0, 0, 255, 1, 2, 0, then=ONES)}, "padding bits set"),
    "mask too short": (model(entry(shape=[3, 6])), GOOD, "3 symbols of a byte each in 2 bytes"),
    "no choice": (model(entry(shape=[2])), GOOD, "no choice"),
    "gaps cut short": (model(entry(bytes=[3, 0, 9])), {"packed/w": blob(1, 0, 0, 0, then=ONES)}, "cut short"),
    "gaps of the frequent": (model(entry(bytes=[13, 0, 9])), gaps(0, 1, 3, kind=2), "the more frequent"),
    "gaps beyond": (model(entry(bytes=[12, 0, 9])), gaps(3, 4), "beyond the tensor"),
    "gaps far beyond": (model(entry(bytes=[12, 0, 9])), gaps(3, 254), "beyond the tensor"),
    "low bits absurd": (model(entry(bytes=[12, 0, 9])), gaps(3, 1, low=200), "beyond the tensor"),
    "escapes absurd": (model(entry(bytes=[12, 0, 9])), gaps(3, 1, escapes=2**64 - 1), "beyond the tensor"),
    "only escapes": (model(entry(bytes=[12, 0, 9], shape=[600])), gaps(3, 255), "0 places, where 2 are said"),
    "codec unknown": (model(entry(bytes=[12, 0, 9])), gaps(4, 1), "of an unknown kind, 4"),
    "constant with bytes": (model(entry(bytes=[13, 0, 9])), gaps(3, 1, 1), "of an unknown kind, 3"),
    "symbol too large": (model(entry(bytes=[14, 0, 9])), gaps(0, 2, 3, 3), "a symbol above 2"),
    "code beyond": (*coded("codebook", ONES, 0, 2, 1, 2), "a code beyond a codebook of 2 values"),
    "codebook in pieces": (*coded("codebook", ONES[:-1], 3, 0), "a codebook of 7 bytes"),
    "codebook too large": (*coded("codebook", bytes(257 * 4), 3, 0), "a codebook of 1028 bytes"),
    "no codebook": (*coded("codebook", b"", 3, 0), "a code beyond a codebook of 0"),
    "no scale": (*coded("linear", b"abc", 3, 0), "levels in 3 bytes"),
    "no levels": (*coded("linear", b"abcd", 3, 0), "a code beyond"),
    "Huffman cut short": (*coded("codebook", ONES, 1, 1, 17), "Huffman code is cut short"),
    "Huffman without pieces": (*coded("codebook", ONES, 1, 1, 17, 0, 2), "Huffman code is cut short"),
    "Huffman lengths": (*coded("codebook", ONES, 1, 1, 33, 0, 2, 2, 0, 0), "no Huffman code"),
    "Huffman of one": (*coded("codebook", ONES, 1, 1, 1, 0, 2, 2, 0, 0), "no Huffman code"),
    "Huffman too long": (*coded("codebook", ONES, 1, 1, 13 + 16, 0, 2, 2, 0, 0), "no Huffman code"),
    "Huffman padding": (*coded("codebook", ONES, 1, 0, 17, 0, 2, 2, 0, 0), "padding bits"),
    "Huffman pieces of 0": (*coded("codebook", ONES, 1, 1, 17, 0, 0, 2, 0, 0), "pieces of 0"),
    "Huffman pieces of 5000": (*coded("codebook", ONES, 1, 1, 17, 136, 19, 2, 0, 0), "pieces of 5000"),
    "Huffman bits": (*coded("codebook", ONES, 1, 1, 17, 0, 2, 9, 0, 0), "9 bits in 1 bytes"),
    "Huffman end": (*coded("codebook", ONES, 1, 1, 17, 0, 2, 3, 0, 0), "does not end where it should"),
    "Huffman last bits": (*coded("codebook", ONES, 1, 1, 17, 0, 2, 2, 0, 1), "padding bits"),
    "ANS cut short": (*coded("codebook", ONES, 2, 1, 9), "an ANS code of 1 bytes"),
    "ANS in pieces": (*coded("codebook", ONES, 2, 1, 9, 9, 1, 2, 3), "an ANS code of 5 bytes"),
    "ANS of one": (*coded("codebook", ONES, 2, 0, 9), "an ANS code"),
    "ANS end": (*coded("codebook", ONES, 2, 1, 9, 9, 1, 2, 3, 4, 1, 2, 3, 4), "does not end where it should"),
    "ANS zero": (*coded("codebook", ONES, 2, 1, 9, 9, 0, 0, 0, 0), "zero word"),
    "report no object": (model() | {"report": 1}, {}, "the report makes no sense"),
    "report without scope": (model() | {"report": {"criterion": "a", "notes": [], "rows": []}}, {}, "the report makes"),
    "report row": (model() | {"report": REPORT | {"rows": [["a"]]}}, {}, "row that makes no sense"),
    "report shape": (
        model() | {"report": REPORT | {"rows": [["a", [1] * 65, 1, 1, 0, 0, 0, 0]]}},
        {},
        "65 dimensions.*64",
    ),
    "report number": (model() | {"report": REPORT | {"rows": [["a", [], 1, 1, "x", 0, 0, 0]]}}, {}, "for a number"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies(tmp_path: Path, lie: str) -> None:
    index, tensors, reason = LIES[lie]
    write(tmp_path / "bad.pw", index if isinstance(index, str) else json.dumps(index), tensors)
    with allocating(10_000_000):
        refused(tmp_path / "bad.pw", reason)


def test_what_the_lies_are_made_of_is_true(tmp_path: Path) -> None:
    expected = torch.zeros(3, 3)
    expected.view(-1)[:2] = 1
    truths = [(model(entry()), GOOD), (model(entry(bytes=[12, 0, 9])), gaps(3, 0)), coded("codebook", ONES, 3, 0)]
    for index, tensors in truths:
        write(tmp_path / "f", json.dumps(index), tensors)
        assert torch.equal(load(tmp_path / "f")["w"], expected)
    write(tmp_path / "f", json.dumps(model(PLAIN) | {"report": REPORT}), DENSE)
    assert torch.equal(load(tmp_path / "f")["w"], torch.ones(3, 3))


def test_the_error_is_a_value_error_with_file_and_cause(tmp_path: Path) -> None:
    save(pruned(), tmp_path / "bad.pw")
    (tmp_path / "bad.pw").write_bytes(b"")
    with pytest.raises(ValueError, match=str(tmp_path)) as caught:
        load(tmp_path / "bad.pw")
    assert caught.value.__cause__ is not None


def test_offsets_that_are_not_aligned(bad: Files) -> None:
    """Legal for safetensors, and torch cannot view it: read or refused, never a crash."""
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
        "__metadata__": {"format": "prunewald", "version": "1", "index": "[]", "sha256": ""},
    }
    head = json.dumps(header).encode()
    refused(bad(len(head).to_bytes(8, "little") + head + bytes(5)), "")
