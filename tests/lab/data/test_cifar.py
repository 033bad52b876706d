import hashlib
from pathlib import Path

import pytest
import torch

from prunewald.lab.data import DataError, cifar, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six files in the form of the binary version, of 20 random images each."""
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in cifar.SUMS:
        records = torch.randint(256, (20, cifar.RECORD), dtype=torch.uint8, generator=generator)
        records[:, 0] = torch.arange(20) % 10
        (folder / name).write_bytes(records.numpy().tobytes())
    return folder


def test_records(folder: Path) -> None:
    raw = load("cifar10", folder.parent, verify=False)
    assert raw.source == "CIFAR-10 (100 + 20 images, checksums not checked)"
    assert (raw.train.x.shape, raw.test.x.shape) == ((100, 3, 32, 32), (20, 3, 32, 32))
    assert raw.train.y.tolist() == [i % 10 for i in range(100)]
    second = (folder / "data_batch_2.bin").read_bytes()
    assert raw.train.x[20].flatten().tolist() == list(second[1 : cifar.RECORD])
    assert len(raw.classes) == 10
    assert raw.train.x.is_contiguous()


def test_checksum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"data_batch_1\.bin does not match the checksum.*verify=False"):
        load("cifar10", folder)
    for name in cifar.SUMS:
        monkeypatch.setitem(cifar.SUMS, name, hashlib.sha256((folder / name).read_bytes()).hexdigest())
    assert len(load("cifar10", folder).train.y) == 100


def test_missing_or_cut_or_bad_label(folder: Path) -> None:
    path = folder / "test_batch.bin"
    for size in (0, 1, 3072, 10_000):
        path.write_bytes(bytes(size))
        with pytest.raises(DataError, match=r"test_batch\.bin is damaged.*cs\.toronto\.edu"):
            load("cifar10", folder, verify=False)
    path.write_bytes(bytes([77]) * cifar.RECORD)
    with pytest.raises(DataError, match=r"test_batch\.bin is damaged \(label 77"):
        load("cifar10", folder, verify=False)
    path.unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin' has no test_batch\.bin"):
        load("cifar10", folder, verify=False)
    (folder / "data_batch_1.bin").unlink()
    with pytest.raises(DataError, match=r"has no data_batch_1\.bin"):
        load("cifar10", folder, verify=False)
