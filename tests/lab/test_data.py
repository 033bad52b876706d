import gzip
import os
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from prunewald.lab import data as lab_data
from prunewald.lab.data import DataError, fashion_mnist, read_embedded, read_folder

FULL = os.environ.get("PRUNEWALD_DATA", "")
needs_full = pytest.mark.skipif(not FULL, reason="PRUNEWALD_DATA does not name a folder with Fashion-MNIST")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in the idx form, with 620 training and 20 test images a class made of the embedded ones."""
    for prefix, part in zip(("train", "t10k"), read_embedded(), strict=True):
        x, y = torch.cat([part.x, part.x[::30]]), torch.cat([part.y, part.y[::30]])
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", x)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte.gz", y.byte())
    return tmp_path


def write_idx(path: Path, tensor: torch.Tensor) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, tensor.dim()]) + sizes + tensor.numpy().tobytes(), 1))


def test_embedded_parts_are_balanced_and_scaled() -> None:
    data = fashion_mnist(seed=0)
    for part, count in ((data.train, 540), (data.val, 60), (data.test, 200)):
        assert part.x.shape == (10 * count, 1, 28, 28)
        assert part.x.dtype == torch.float32
        assert (float(part.x.min()), float(part.x.max())) == (0, 1)
        assert part.y.bincount().tolist() == [count] * 10


def test_embedded_split_is_all_of_the_data_and_redrawn_per_seed() -> None:
    one, same, other = fashion_mnist(1), fashion_mnist(1), fashion_mnist(2)
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.val.x, other.val.x)
    assert torch.equal(one.test.x, other.test.x)
    everything = torch.cat([one.train.x, one.val.x]).sum((0, 1))
    torch.testing.assert_close(everything, (read_embedded()[0].x / 255).sum(0), rtol=1e-4, atol=1e-3)


def test_embedded_size_and_licence() -> None:
    folder = files("prunewald.lab").joinpath("embedded")
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 3_000_000
    assert "Copyright (c) 2017 Zalando SE" in folder.joinpath("LICENSE").read_text()


def test_embedded_damage_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(str(files("prunewald.lab").joinpath("embedded")))
    shutil.copytree(source, tmp_path / "embedded")
    damaged = bytearray((source / "test.xz").read_bytes())
    damaged[5000] ^= 1
    (tmp_path / "embedded" / "test.xz").write_bytes(damaged)
    monkeypatch.setattr(lab_data, "files", lambda _: tmp_path)
    with pytest.raises(DataError, match=r"test\.xz does not match its checksum"):
        fashion_mnist(0)


def test_folder_or_its_parent_or_plain_files(folder: Path, tmp_path: Path) -> None:
    x = fashion_mnist(3, folder).train.x
    assert x.shape == (5400, 1, 28, 28)
    assert fashion_mnist(3, folder).test.x.shape[0] > 2000
    inside = tmp_path / "fashion-mnist"
    inside.mkdir()
    for path in folder.glob("*.gz"):
        (inside / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert torch.equal(fashion_mnist(3, tmp_path).train.x, x)


def test_missing_folder_names_it_and_helps(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere' does not exist.*dataset-fashion-mnist"):
        fashion_mnist(0, tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte\.gz.*dataset-fashion-mnist"):
        fashion_mnist(0, tmp_path)


@pytest.mark.parametrize("keep", [0, 100, -10])
def test_cut_file_is_damaged(folder: Path, keep: int) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged"):
        fashion_mnist(0, folder)


def test_other_shapes_and_counts_are_refused(folder: Path) -> None:
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    write_idx(labels, torch.zeros(7, dtype=torch.uint8))
    with pytest.raises(DataError, match="has 7 labels for"):
        read_folder(folder)
    write_idx(folder / "t10k-images-idx3-ubyte.gz", torch.zeros(7, 32, 32, dtype=torch.uint8))
    with pytest.raises(DataError, match="not an idx file of 28x28"):
        read_folder(folder)


def test_too_few_of_a_class(folder: Path) -> None:
    write_idx(folder / "train-images-idx3-ubyte.gz", torch.zeros(7, 28, 28, dtype=torch.uint8))
    write_idx(folder / "train-labels-idx1-ubyte.gz", torch.zeros(7, dtype=torch.uint8))
    with pytest.raises(DataError, match="class 0 has 7 training images, 600 are needed"):
        fashion_mnist(0, folder)


@needs_full
def test_full_set_holds_the_embedded_part() -> None:
    (train, test), embedded = read_folder(FULL), read_embedded()
    assert (len(train.y), len(test.y)) == (60_000, 10_000)
    for full, part in zip((train, test), embedded, strict=True):
        for label in range(10):
            mine = part.x[part.y == label]
            assert torch.equal(full.x[full.y == label][: len(mine)], mine)


@needs_full
def test_full_set_is_redrawn_per_seed() -> None:
    one, other = fashion_mnist(1, FULL), fashion_mnist(2, FULL)
    assert one.test.x.shape[0] == 10_000
    assert not torch.equal(one.train.x.sum(0), other.train.x.sum(0))
