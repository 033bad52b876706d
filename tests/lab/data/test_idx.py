import gzip
import hashlib
from pathlib import Path

import pytest
import torch

from prunewald.lab.data import DataError, fashion_mnist, idx, load
from tests.lab.data.helpers import write_idx


def test_missing_file_is_named(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"has no t10k-labels-idx1-ubyte\.gz: fetch all four.*yann\.lecun\.com"):
        load("mnist", folder, verify=False)


@pytest.mark.parametrize("keep", [0, 100, -10])
def test_cut_file_is_damaged(folder: Path, keep: int) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged.*dataset-fashion-mnist"):
        fashion_mnist(0, folder)


@pytest.mark.parametrize("size", [0, 3, 8, 12, 16, 5000])
def test_cut_plain_file_is_damaged(folder: Path, size: int) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    (folder / path.stem).write_bytes(gzip.decompress(path.read_bytes())[:size])
    path.unlink()
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is damaged"):
        fashion_mnist(0, folder, verify=False)


def test_other_shapes_counts_and_labels_are_refused(folder: Path) -> None:
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    write_idx(labels, torch.zeros(7, dtype=torch.uint8))
    with pytest.raises(DataError, match="has 7 labels for"):
        load("mnist", folder, verify=False)
    write_idx(labels, torch.full((2067,), 10, dtype=torch.uint8))
    with pytest.raises(DataError, match="label 10, the largest is 9"):
        load("mnist", folder, verify=False)
    write_idx(folder / "t10k-images-idx3-ubyte.gz", torch.zeros(7, 32, 32, dtype=torch.uint8))
    with pytest.raises(DataError, match="not an idx file of 28x28"):
        load("mnist", folder, verify=False)


def test_other_data_of_the_right_form_needs_verify_false(folder: Path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz does not match the published checksum.*verify=F"):
        load("mnist", folder)
    assert len(load("mnist", folder, verify=False).test.y) == 2067


def test_either_checksum_will_do(folder: Path) -> None:
    sums = {}
    for path in folder.glob("*.gz"):
        packed = path.read_bytes()
        sums[path.stem] = idx.Sum(hashlib.md5(packed).hexdigest(), "")
    assert len(idx.read_idx(folder, sums)[0].y) == 6200
    for path in folder.glob("*.gz"):
        contents = gzip.decompress(path.read_bytes())
        sums[path.stem] = idx.Sum("", hashlib.sha256(contents).hexdigest())
        path.write_bytes(gzip.compress(contents, 0))
    assert len(idx.read_idx(folder, sums)[0].y) == 6200
