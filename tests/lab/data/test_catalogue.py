from pathlib import Path

import pytest
import torch

from prunewald.lab.data import NAMES, DataError, embedded, fashion_mnist, load, split
from prunewald.lab.data.catalogue import ENTRIES
from tests.lab.data.helpers import real

SIZES = {
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), 6_000),
    "mnist": (60_000, 10_000, (1, 28, 28), 60_000),
    "cifar10": (50_000, 10_000, (3, 32, 32), 50_000),
    "imagenet100": (30_000, 5_000, (3, 64, 64), 30_000),
}


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
