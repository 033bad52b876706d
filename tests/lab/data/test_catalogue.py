import gzip
import hashlib
import os
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from prunewald.lab.data import NAMES, DataError, embedded, fashion_mnist, idx, load, scaled, split
from prunewald.lab.data.catalogue import ENTRIES, _found

PLACES = (
    Path(os.environ.get("PRUNEWALD_DATA") or "/nowhere"),
    Path(__file__).parents[4] / "shared/data",
    Path("/usr/share/datasets"),
)
SIZES = {
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), 6_000),
    "mnist": (60_000, 10_000, (1, 28, 28), 60_000),
    "cifar10": (50_000, 10_000, (3, 32, 32), 50_000),
    "imagenet100": (30_000, 5_000, (3, 64, 64), 30_000),
}


def real(name: str) -> Path:
    """The folder of a published data set, where there is one."""
    for place in PLACES:
        found = _found(ENTRIES[name], place)
        if found is not None:
            return found
    pytest.skip(f"PRUNEWALD_DATA does not name a folder with {name}")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRUNEWALD_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in the idx form, with 620 training and 207 test images a class made of the embedded ones."""
    raw = embedded()
    for prefix, part in (("train", raw.train), ("t10k", raw.test)):
        x, y = torch.cat([part.x, part.x[::30]]), torch.cat([part.y, part.y[::30]])
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", x.squeeze(1))
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
    monkeypatch.setattr("prunewald.lab.data.carried.files", lambda _: tmp_path)
    with pytest.raises(DataError, match=r"test\.xz does not match its checksum"):
        fashion_mnist(0)


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


def test_what_load_gives(folder: Path) -> None:
    raw = load("mnist", folder, verify=False)
    assert (raw.name, raw.classes) == ("mnist", tuple("0123456789"))
    assert raw.source == "MNIST (6,200 + 2,067 images, checksums not checked)"
    assert raw.train.x.shape == (6200, 1, 28, 28)
    assert (raw.train.x.dtype, raw.train.y.dtype) == (torch.uint8, torch.int64)


def test_environment_then_embedded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("fashion-mnist").source == "embedded part of Fashion-MNIST (6,000 + 2,000 images)"
    monkeypatch.setenv("PRUNEWALD_DATA", str(folder))
    assert len(load("fashion-mnist", verify=False).train.y) == 6200
    assert len(fashion_mnist(0).test.y) == 2000  # the demo's stays the embedded part
    (tmp_path / "above" / "mnist").mkdir(parents=True)
    for path in folder.glob("*.gz"):
        path.rename(tmp_path / "above" / "mnist" / path.name)
    monkeypatch.setenv("PRUNEWALD_DATA", str(tmp_path / "above"))
    assert len(load("mnist", verify=False).train.y) == 6200
    assert load("fashion-mnist").source.startswith("embedded")
    with pytest.raises(DataError, match=r"CIFAR-10 is not here\..*cifar-10-binary\.tar\.gz"):
        load("cifar10")
    monkeypatch.setenv("PRUNEWALD_DATA", "/no/such/folder")
    with pytest.raises(DataError, match="PRUNEWALD_DATA names the folder '/no/such/folder', which does not exist"):
        load("fashion-mnist")


@pytest.mark.parametrize(
    ("name", "where"),
    [("mnist", r"yann\.lecun\.com"), ("cifar10", r"cs\.toronto\.edu"), ("imagenet100", r"image-net\.org.*standing in")],
)
def test_absent_says_where_to_get_it_and_how_to_point_to_it(name: str, where: str) -> None:
    with pytest.raises(DataError, match=rf"is not here.*{where}.*--data DIR.*PRUNEWALD_DATA"):
        load(name)


def test_unknown_name() -> None:
    with pytest.raises(DataError, match="data set 'imagenet': give one of fashion-mnist, mnist, cifar10, imagenet100"):
        load("imagenet")


@pytest.mark.parametrize("name", NAMES)
def test_missing_folder_names_it_and_helps(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere' does not exist.*PRUNEWALD_DATA"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(DataError, match=rf"{tmp_path}' has no .* and no folder .*{ENTRIES[name].title}: "):
        load(name, tmp_path)


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


def test_too_few_of_a_class(folder: Path) -> None:
    write_idx(folder / "train-images-idx3-ubyte.gz", torch.zeros(7, 28, 28, dtype=torch.uint8))
    write_idx(folder / "train-labels-idx1-ubyte.gz", torch.zeros(7, dtype=torch.uint8))
    with pytest.raises(DataError, match="class 0 has 7 training images, 600 are needed"):
        fashion_mnist(0, folder, verify=False)


@pytest.mark.parametrize("name", NAMES)
def test_published_data(name: str) -> None:
    raw = load(name, real(name))
    train, test, shape, used = SIZES[name]
    assert (raw.train.x.shape, raw.test.x.shape) == ((train, *shape), (test, *shape))
    assert set(raw.train.y.tolist()) == set(raw.test.y.tolist()) == set(range(len(raw.classes)))
    rows = split(raw, 0)
    assert torch.cat(rows).unique().numel() == used
    assert "checksums" not in raw.source
    assert name != "imagenet100" or raw.source.startswith("Tiny-ImageNet-100 standing in for ImageNet-100 (30,000 + ")


def test_full_set_holds_the_embedded_part() -> None:
    raw, part = load("fashion-mnist", real("fashion-mnist")), embedded()
    for full, mine in ((raw.train, part.train), (raw.test, part.test)):
        for label in range(10):
            some = mine.x[mine.y == label]
            assert torch.equal(full.x[full.y == label][: len(some)], some)


def test_full_set_is_redrawn_per_seed() -> None:
    folder = real("fashion-mnist")
    one, other = fashion_mnist(1, folder), fashion_mnist(2, folder)
    assert one.test.x.shape[0] == 10_000
    assert not torch.equal(one.train.x.sum(0), other.train.x.sum(0))
