"""The container: what is written comes back, in the order the format asks for, within the memory that is allowed."""

import hashlib
from pathlib import Path

import pytest
import torch

from prunewald.storage import PackedFileError, inspect, load, mask_file, save
from prunewald.storage.container import blaming, read, write
from prunewald.storage.index import Packing, TensorEntry, dump

from .helpers import holding, identical, net, noise, raw


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    tensors = {"b": noise(torch.float32, 3, 2), "a": noise(torch.int64, 0), "c": noise(torch.bool, 5)}
    write(tmp_path / "f", "the index", tensors)
    found = read(tmp_path / "f")
    assert found.index == "the index"
    assert identical(found.tensors, tensors)
    assert found.header["b"]["shape"] == [3, 2]
    assert found.size == (tmp_path / "f").stat().st_size


def test_data_is_aligned(tmp_path: Path) -> None:
    model = holding(a=noise(torch.uint8, 3), b=noise(torch.float64, 3), c=noise(torch.int16, 3))
    save(model, tmp_path / "f")
    file = (tmp_path / "f").read_bytes()
    start = 8 + int.from_bytes(file[:8], "little")
    assert start % 8 == 0
    assert file[start:] == raw(model.b) + raw(model.c) + raw(model.a)  # type: ignore[arg-type]


def test_the_bytes_of_format_1_stay(tmp_path: Path) -> None:
    """Files are about in the world: if these bytes change, it must be meant, and the old ones must stay readable."""
    weight = torch.zeros(40, 30)
    weight[::3, ::2] = (torch.arange(210.0).view(14, 15) % 7 - 3).masked_fill_(torch.eye(14, 15).bool(), 0.5)
    save(holding(w=weight, b=torch.arange(4.0), n=torch.tensor(7)), tmp_path / "f", codec="huffman", positions="gaps")
    digest = hashlib.sha256((tmp_path / "f").read_bytes()).hexdigest()
    assert digest == "1713ff3f2793b0a4459e0137fa395ea57fe9302b45a61ffa3141f3226de8aa04"


def test_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    entry = TensorEntry(("w",), "F32", (2**28 + 1,), Packing(0, "F32", (0, 0, 1)))  # a little more than 1 GiB
    write(path, dump([entry]), {"packed/w": torch.zeros(1, dtype=torch.uint8)})
    for call in (load, inspect):
        with pytest.raises(PackedFileError, match="1,073,741,828 bytes, more than 1,073,741,824.*max_bytes="):
            call(path)
    small = net()
    save(small, path)
    with pytest.raises(PackedFileError, match="more than 100;"):
        load(path, max_bytes=100)
    with pytest.raises(PackedFileError, match="more than 100;"):
        load(path, into=net(seed=1), max_bytes=100)
    assert identical(load(path, into=net(seed=1), max_bytes=10**6).state_dict(), small.state_dict())


@pytest.mark.parametrize("call", [load, inspect, mask_file.load])
@pytest.mark.parametrize("limit", [-1, 1.5, "many", True])
def test_a_limit_that_is_no_number_of_bytes_is_not_the_files_fault(tmp_path: Path, call: object, limit: object) -> None:
    save(net(), tmp_path / "f")
    with pytest.raises(ValueError, match=f"max_bytes={limit!r}.*whole number") as caught:
        call(tmp_path / "f", max_bytes=limit)  # type: ignore[operator]
    assert not isinstance(caught.value, PackedFileError)


@pytest.mark.parametrize("error", [OSError, MemoryError, ImportError])
def test_what_is_not_the_files_fault_is_raised_as_it_is(error: type[Exception]) -> None:
    with pytest.raises(error, match="^mine$"), blaming("f"):
        raise error("mine")


def test_anything_else_is_the_files_fault() -> None:
    with pytest.raises(PackedFileError, match="^f: mine$"), blaming("f"):
        raise RuntimeError("mine")
