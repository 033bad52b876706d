import gzip
from pathlib import Path

import pytest
import torch

from prunewald.lab.data import DataError, embedded, fashion_mnist, scaled, split
from tests.lab.data.helpers import real, write_idx


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
    everything = torch.cat([one.train.x, one.val.x]).sum(0)
    torch.testing.assert_close(everything, (embedded().train.x / 255).sum(0), rtol=1e-4, atol=1e-3)


def test_committed_results_were_made_with_these_draws() -> None:
    data = fashion_mnist(7)
    train, val = (part.x.mul(255).round().sum((1, 2, 3)).int().tolist() for part in (data.train, data.val))
    assert train[::600] == [42671, 53137, 60100, 49336, 80548, 28006, 92723, 33012, 54150]
    assert val[::100] == [57859, 43191, 73288, 22494, 87902, 75862]
    rows = split(embedded(), 7)
    assert torch.equal(scaled(embedded().train, rows.train).x, data.train.x)
    assert torch.equal(scaled(embedded().train, rows.val).y, data.val.y)


def test_folder_or_its_parent_or_plain_files(folder: Path, tmp_path: Path) -> None:
    x = fashion_mnist(3, folder, verify=False).train.x
    assert x.shape == (5400, 1, 28, 28)
    assert fashion_mnist(3, folder, verify=False).test.x.shape[0] > 2000
    for inside in ("fashion-mnist", "FashionMNIST/raw"):
        parent = tmp_path / "parent" / inside[0]
        (parent / inside).mkdir(parents=True)
        for path in folder.glob("*.gz"):
            (parent / inside / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        assert torch.equal(fashion_mnist(3, parent, verify=False).train.x, x)


def test_too_few_of_a_class(folder: Path) -> None:
    write_idx(folder / "train-images-idx3-ubyte.gz", torch.zeros(7, 28, 28, dtype=torch.uint8))
    write_idx(folder / "train-labels-idx1-ubyte.gz", torch.zeros(7, dtype=torch.uint8))
    with pytest.raises(DataError, match="class 0 has 7 training images, 600 are needed"):
        fashion_mnist(0, folder, verify=False)


def test_full_set_is_redrawn_per_seed() -> None:
    folder = real("fashion-mnist")
    one, other = fashion_mnist(1, folder), fashion_mnist(2, folder)
    assert one.test.x.shape[0] == 10_000
    assert not torch.equal(one.train.x.sum(0), other.train.x.sum(0))
