"""Twenty thousand damaged files: refused with a reason, or read as what they say; never a crash, a hang or a flood.

Most of them have a right checksum, since what is behind it is what has to hold. Hypothesis draws a source of chance for
every fifty of them, the same ones each time, and names it when one fails.
"""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prunewald.storage import PackedFileError, load, mask_file, positions, save
from prunewald.storage.codes import ans, huffman, streams
from prunewald.storage.container import Contents, blaming, check_size, read
from prunewald.storage.index import DTYPES
from prunewald.storage.packed import read_index
from prunewald.storage.state_dict import unpack

from .helpers import allocating, holding, identical, pruner

LIMIT = 1 << 20
BEHIND, BEFORE, MASKS, EACH = 16_000, 3_000, 2_000, 50
CHANCES = st.randoms(use_true_random=True)
WAYS = [
    {"values": "codebook", "size": 5, "codec": "huffman", "positions": "gaps"},
    {"values": "codebook", "size": 6, "codec": "ans", "positions": "ans"},
    {"values": "int8", "codec": "raw", "positions": "bits"},
    {"values": "int4"},
    {"values": "bfloat16", "codec": "huffman"},
    {},
]


def sparse(keep: float, *shape: int) -> tuple[Tensor, Tensor]:
    mask = torch.rand(shape) < keep
    return torch.where(mask, torch.randn(shape), 0.0), mask


def corpus(folder: Path) -> list[Contents]:
    """A tensor for every way to store one."""
    torch.manual_seed(0)
    files = []
    for i, way in enumerate(WAYS):
        weights = {f"w{i}.{keep}": sparse(keep, 20, 30) for keep in (0.02, 0.3, 0.8)}
        tensors = {name.replace(".", "_"): weight for name, (weight, _) in weights.items()}
        masks = {name.replace(".", "_"): mask for name, (_, mask) in weights.items()}
        others = {f"b{i}": torch.randn(9), f"n{i}": torch.tensor(7), f"flags{i}": torch.rand(300) < 0.1}
        save(pruner(holding(**tensors, **others), masks), folder / "f", **way)  # type: ignore[arg-type]
        found = read(folder / "f")
        for row in json.loads(found.index)["tensors"]:
            key = f"{'packed' if 'bytes' in row else 'dense'}/{row['names'][0]}"
            files.append(Contents(json.dumps({"tensors": [row]}), {key: found.tensors[key]}, {}, found.size))
    return files


def change_number(row: dict[str, Any], chance: random.Random) -> None:
    near = chance.choice([-1, 1, 2, 8, 255, 2**31, 2**62])
    places: list[tuple[Any, Any]] = [(row, "kept")] if "kept" in row else []
    places += [(row[key], i) for key in ("shape", "bytes") for i in range(len(row.get(key, ())))]
    if places:
        where, key = chance.choice(places)
        where[key] = chance.choice([where[key] + near, near, where[key] * 2, 0])


def change_word(row: dict[str, Any], chance: random.Random) -> None:
    key = chance.choice(["dtype", "values"])
    row[key] = chance.choice([*DTYPES, "codebook", "linear", "", None])


def change_keys(row: dict[str, Any], chance: random.Random) -> None:
    key = chance.choice(list(row))
    row[chance.choice(["more", *row])] = row.pop(key)


def move_border(row: dict[str, Any], chance: random.Random) -> None:
    if "bytes" in row:
        one, other = chance.sample(range(3), 2)
        step = chance.randrange(1, 12)
        row["bytes"][one] += step
        row["bytes"][other] -= step


CHANGES = [change_number, change_number, move_border, change_word, change_keys]


def damaged(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = (
            min(int(chance.expovariate(1 / 12)), len(found))
            if chance.random() < 0.6
            else chance.randrange(len(found) + 1)
        )
        match chance.randrange(5):
            case 0:
                found[at : at + 1] = bytes([found[at] ^ 1 << chance.randrange(8)]) if at < len(found) else b""
            case 1:
                found[at : at + 1] = bytes([chance.choice([0, 1, 2, 3, 127, 255])])
            case 2:
                found[at : at + chance.randrange(1, 9)] = b""
            case 3:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                found[at : at + 8] = chance.randrange(2**64).to_bytes(8, "little")
    return bytes(found)


def mutant(good: Contents, chance: random.Random) -> Contents:
    (row,) = json.loads(good.index)["tensors"]
    tensors = dict(good.tensors)
    if "bytes" not in row or chance.random() < 0.25:
        chance.choice(CHANGES)(row, chance)
    else:
        sizes = row["bytes"]
        section = chance.choice([i for i in range(3) if sizes[i]])
        key = f"packed/{row['names'][0]}"
        blob = tensors[key].numpy()
        before, found, after = np.split(blob, [sum(sizes[:section]), sum(sizes[: section + 1])])
        new = damaged(found.tobytes(), chance)
        tensors[key] = torch.tensor([*before, *new, *after], dtype=torch.uint8)
        sizes[section] = len(new)
    return Contents(json.dumps({"tensors": [row]}), tensors, {}, good.size)


def attempt(contents: Contents) -> dict[str, Tensor] | None:
    try:
        with blaming("f"):
            entries, _ = read_index(contents)
            check_size(contents.size, sum(entry.nbytes for entry in entries), LIMIT)
            return unpack(entries, contents.tensors)
    except PackedFileError:
        return None


def many(times: int, job: Callable[[random.Random], None]) -> None:
    """Do it so many times, each with chance; what fails is found again."""

    @settings(max_examples=times // EACH, derandomize=True, deadline=None, database=None)
    @given(CHANCES)
    def some(chance: random.Random) -> None:
        for _ in range(EACH):
            job(chance)

    some()


@pytest.mark.slow
def test_behind_the_checksum(tmp_path: Path) -> None:
    files = corpus(tmp_path)
    assert all(attempt(good) for good in files)
    tried: list[None] = []
    read_as: list[None] = []

    def one(chance: random.Random) -> None:
        bad = mutant(chance.choice(files), chance)
        found = attempt(bad)
        tried.append(None)
        if found is not None:
            read_as.append(None)
            for row in json.loads(bad.index)["tensors"]:
                for name in row["names"]:
                    assert (found[name].dtype, list(found[name].shape)) == (DTYPES[row["dtype"]], row["shape"])

    many(BEHIND, one)
    assert len(tried) >= BEHIND
    assert 0.05 < len(read_as) / len(tried) < 0.9  # both ends are tried


def test_every_kind_of_code_is_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()

    def spy(name: str, decode: Callable[..., Any]) -> Callable[..., Any]:
        def spied(*given: Any) -> Any:
            used.add(name)
            return decode(*given)

        return spied

    for module, name in ((huffman, "decode"), (ans, "decode"), (streams, "read_planes"), (positions, "_places")):
        monkeypatch.setattr(module, name, spy(f"{module.__name__}.{name}", getattr(module, name)))
    files = corpus(tmp_path)
    for good in files:
        attempt(good)
    assert len(used) == 4
    kinds = [json.loads(good.index)["tensors"][0].get("values") for good in files]
    assert {"codebook", "linear", "BF16", "F32", None} <= set(kinds)


@pytest.mark.slow
def test_memory(tmp_path: Path) -> None:
    files, chance = corpus(tmp_path), random.Random(1)
    for _ in range(500):
        good = chance.choice(files)
        with allocating(8 * (good.size + LIMIT)):
            attempt(mutant(good, chance))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32])
@pytest.mark.parametrize("keep", [0.01, 0.4999, 0.5001, 0.9, 1.0])
@pytest.mark.parametrize("positions", ["gaps", "ans", "bits"])
@pytest.mark.parametrize("codec", ["huffman", "ans"])
def test_memory_of_a_large_tensor(tmp_path: Path, dtype: torch.dtype, keep: float, positions: Any, codec: Any) -> None:
    """Six times file and tensor, and torch, which is not seen here, has one copy of each."""
    torch.manual_seed(0)
    mask = torch.arange(200_000) * keep % 1 < keep  # evenly: most gaps are alike, and cheap
    mask[1000:3000] = False
    weight = torch.where(mask, torch.randint(1, 2 if dtype == torch.bool else 5, (200_000,)), 0).to(dtype)
    save(pruner(holding(w=weight), {"w": mask}), tmp_path / "f", codec=codec, positions=positions)
    good = read(tmp_path / "f")
    with allocating(6 * (good.size + weight.nbytes) + 100_000):
        found = unpack(read_index(good)[0], good.tensors)
    assert identical(found, {"w": weight})


def whole_file(good: bytes, path: Path, read: Callable[[Path], dict[str, Tensor]], times: int) -> None:
    path.write_bytes(good)
    state = read(path)

    def one(chance: random.Random) -> None:
        path.write_bytes(damaged(good, chance))
        with suppress(PackedFileError):
            assert identical(read(path), state)

    many(times, one)
    path.write_bytes(good)


@pytest.mark.slow
def test_before_the_checksum(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight, mask = sparse(0.3, 20, 30)
    save(pruner(holding(w=weight, b=torch.randn(9)), {"w": mask}), tmp_path / "f", values="codebook")
    whole_file((tmp_path / "f").read_bytes(), tmp_path / "f", load, BEFORE)


@pytest.mark.slow
def test_masks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mask_file.save({f"w{keep}": torch.rand(30, 40) < keep for keep in (0.02, 0.3, 0.8)}, tmp_path / "f")
    whole_file((tmp_path / "f").read_bytes(), tmp_path / "f", mask_file.load, MASKS // 2)
    good = read(tmp_path / "f")

    def one(chance: random.Random) -> None:
        key = chance.choice(list(good.tensors))
        blob = np.frombuffer(damaged(good.tensors[key].numpy().tobytes(), chance), np.uint8)
        bad = Contents(good.index, good.tensors | {key: torch.tensor(blob)}, {}, good.size)
        try:
            with blaming("f"):
                found = mask_file.unpack(bad, LIMIT)
        except PackedFileError:
            return
        assert all(found[row["name"]].sum() == row["kept"] for row in json.loads(good.index)["masks"])

    many(MASKS // 2, one)


def test_there_are_enough() -> None:
    assert BEHIND + BEFORE + MASKS >= 20_000


@pytest.mark.parametrize("text", ["[],", "{},", '{"a":{}},', "[1],", '"ab",', "1.5,", "[[[]]],"])
def test_memory_for_the_header(text: str) -> None:
    index = '{"tensors":[' + (text * (300_000 // len(text)))[:-1] + "]}"
    with allocating(64 * len(index)):
        assert attempt(Contents(index, {}, {}, len(index))) is None
