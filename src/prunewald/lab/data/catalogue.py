"""The data sets of the paper's four experiments: what they are called, where they come from, how they are read."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prunewald.lab.data import cifar, class_folders, idx
from prunewald.lab.data.carried import CLASSES as FASHION
from prunewald.lab.data.carried import embedded
from prunewald.lab.data.images import DataError, Raw, described

VARIABLE = "PRUNEWALD_DATA"


@dataclass(frozen=True)
class Entry:
    """A data set: `folders` it usually lies in, `first` a file pattern that tells it, `where` to get it."""

    title: str
    folders: tuple[str, ...]
    first: str
    where: str
    read: Callable[[Path, bool, int], Raw]


def load(name: str, folder: str | Path | None = None, *, verify: bool = True, side: int = 64) -> Raw:
    """Read "fashion-mnist", "mnist", "cifar10" or "imagenet100".

    `folder` holds the publisher's files, or a folder of the data set's name; None takes the environment variable
    PRUNEWALD_DATA, and for Fashion-MNIST the embedded part where that has none. `verify=False` takes files of the
    right form that are not the published ones. `side` is the size that ImageNet's images are brought to; its folder
    val is the test part.
    """
    if name not in ENTRIES:
        raise DataError(f"data set {name!r}: give one of {', '.join(NAMES)}")
    entry = ENTRIES[name]
    root = _given(entry, folder) if folder is not None else _from_environment(entry)
    if root is not None:
        try:
            return entry.read(root, verify, side)
        except DataError as error:
            raise DataError(f"{error}. {entry.where}") from error
    if name == "fashion-mnist":
        return embedded()
    raise DataError(f"{entry.title} is not here. {entry.where}. {_how(entry)}")


def _given(entry: Entry, folder: str | Path) -> Path:
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"data folder {str(folder)!r} does not exist. {entry.where}. {_how(entry)}")
    found = _found(entry, root)
    if found is None:
        places = " or ".join(entry.folders)
        raise DataError(f"data folder {str(folder)!r} has no {entry.first} and no folder {places}. {entry.where}")
    return found


def _from_environment(entry: Entry) -> Path | None:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise DataError(f"{VARIABLE} names the folder {folder!r}, which does not exist. {_how(entry)}")
    return _found(entry, Path(folder))


def _found(entry: Entry, root: Path) -> Path | None:
    places = [*(root / name for name in entry.folders), root]
    return next((place for place in places if any(place.glob(entry.first))), None)


def _how(entry: Entry) -> str:
    return f"Then give the folder (--data DIR), or set {VARIABLE} to the folder that holds {entry.folders[0]}"


def _idx(name: str, title: str, classes: tuple[str, ...], sums: dict[str, idx.Sum]) -> Callable[[Path, bool, int], Raw]:
    def read(root: Path, verify: bool, side: int) -> Raw:
        train, test = idx.read_idx(root, sums if verify else None)
        return Raw(name, described(title, train, test, _unchecked(verify)), classes, train, test)

    return read


def _cifar10(root: Path, verify: bool, side: int) -> Raw:
    train, test = cifar.read_cifar(root, verify)
    return Raw("cifar10", described("CIFAR-10", train, test, _unchecked(verify)), cifar.CLASSES, train, test)


def _imagenet100(root: Path, verify: bool, side: int) -> Raw:
    """There are no published checksums of single images."""
    classes, train, test, longest = class_folders.read_class_folders(root, side)
    tiny = longest <= 64
    title = f"{'Tiny-ImageNet' if tiny else 'ImageNet'}-{len(classes)}"
    if tiny or len(classes) != class_folders.AT_MOST:
        title += " standing in for ImageNet-100"
    return Raw("imagenet100", described(title, train, test, f" of {side}x{side}"), classes, train, test)


def _unchecked(verify: bool) -> str:
    return "" if verify else ", checksums not checked"


ENTRIES = {
    "fashion-mnist": Entry(
        "Fashion-MNIST",
        ("fashion-mnist", "FashionMNIST/raw"),
        idx.FIRST,
        "Fashion-MNIST: the four idx .gz files of github.com/zalandoresearch/fashion-mnist, which Debian's package "
        "dataset-fashion-mnist also installs; without a folder the embedded part is used",
        _idx("fashion-mnist", "Fashion-MNIST", FASHION, idx.FASHION_MNIST),
    ),
    "mnist": Entry(
        "MNIST",
        ("mnist", "MNIST/raw"),
        idx.FIRST,
        "MNIST: the four idx .gz files of yann.lecun.com/exdb/mnist, or of any mirror",
        _idx("mnist", "MNIST", tuple("0123456789"), idx.MNIST),
    ),
    "cifar10": Entry(
        "CIFAR-10",
        ("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        cifar.FIRST,
        "CIFAR-10: the binary version, cifar-10-binary.tar.gz of www.cs.toronto.edu/~kriz/cifar.html, unpacked",
        _cifar10,
    ),
    "imagenet100": Entry(
        "ImageNet-100",
        ("imagenet100", "imagenet", "tiny-imagenet-100", "tiny-imagenet-200"),
        class_folders.FIRST,
        "ImageNet-100: ILSVRC2012 of image-net.org as train/CLASS/*.JPEG and val/CLASS/*.JPEG; or, standing in for it, "
        "Tiny-ImageNet, tiny-imagenet-200.zip of Stanford's course CS231n, unpacked",
        _imagenet100,
    ),
}
NAMES = tuple(ENTRIES)
