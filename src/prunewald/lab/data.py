"""Fashion-MNIST as tensors: the part the package carries, or the full set from a folder."""

import gzip
import hashlib
import lzma
import zlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

CLASSES = 10
SIDE = 28
EMBEDDED = {"train.xz": 600, "test.xz": 200}  # images of each class
TRAIN_PER_CLASS, VAL_PER_CLASS = 540, 60
HELP = "Debian's package dataset-fashion-mnist installs such a folder; without one the embedded part is used"


class DataError(ValueError):
    """The data asked for is missing or damaged."""


class Part(NamedTuple):
    """Images and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Dataset:
    """A data set in its three parts."""

    train: Part
    val: Part
    test: Part


def fashion_mnist(seed: int, folder: str | Path | None = None) -> Dataset:
    """The data of the paper's first experiment: 5,400 training and 600 validation images, balanced.

    The split is drawn anew for each seed, from the 6,000 embedded images or, with `folder`, from all 60,000;
    the test part is always whole (2,000 embedded images, or 10,000). Pixels lie in [0, 1].
    """
    train, test = read_embedded() if folder is None else read_folder(folder)
    picked = _draw(train.y, TRAIN_PER_CLASS + VAL_PER_CLASS, seed)
    return Dataset(
        train=_scaled(train, picked[:, VAL_PER_CLASS:].flatten()),
        val=_scaled(train, picked[:, :VAL_PER_CLASS].flatten()),
        test=_scaled(test, torch.arange(len(test.y))),
    )


def read_embedded() -> tuple[Part, Part]:
    """The training and test part the package carries, as bytes, class by class."""
    train, test = (_unpack(name, count) for name, count in EMBEDDED.items())
    return train, test


def read_folder(folder: str | Path) -> tuple[Part, Part]:
    """The full training and test part, as bytes; `folder` holds the idx files, or a folder fashion-mnist."""
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"data folder {str(folder)!r} does not exist: give the folder with the idx files. {HELP}")
    if (root / "fashion-mnist").is_dir():
        root = root / "fashion-mnist"
    train, test = (_read_part(root, prefix) for prefix in ("train", "t10k"))
    return train, test


def _unpack(name: str, count: int) -> Part:
    folder = files("prunewald.lab").joinpath("embedded")
    packed = folder.joinpath(name).read_bytes()
    sums = folder.joinpath("SHA256SUMS").read_text().splitlines()
    if f"{hashlib.sha256(packed).hexdigest()}  {name}" not in sums:
        raise DataError(f"embedded file {name} does not match its checksum: install prunewald again")
    pixels = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8)
    return Part(pixels.view(-1, SIDE, SIDE), torch.arange(CLASSES).repeat_interleave(count))


def _read_part(root: Path, prefix: str) -> Part:
    images = _read_idx(_find(root, f"{prefix}-images", "idx3-ubyte"), header=16).view(-1, SIDE, SIDE)
    path = _find(root, f"{prefix}-labels", "idx1-ubyte")
    labels = _read_idx(path, header=8).long()
    if len(labels) != len(images):
        raise DataError(f"{path} has {len(labels)} labels for {len(images)} images: fetch the files again. {HELP}")
    return Part(images, labels)


def _find(root: Path, stem: str, kind: str) -> Path:
    for name in (f"{stem}-{kind}.gz", f"{stem}-{kind}", f"{stem}.{kind}.gz", f"{stem}.{kind}"):
        if (root / name).is_file():
            return root / name
    raise DataError(f"data folder {str(root)!r} has no {stem}-{kind}.gz: give the folder with the idx files. {HELP}")


def _read_idx(path: Path, header: int) -> Tensor:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}): fetch it again. {HELP}") from error
    sizes = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, header, 4)]
    expected = [SIDE, SIDE] if header == 16 else []
    body = len(raw) - header
    if raw[:3] != b"\0\0\x08" or sizes[1:] != expected or body != sizes[0] * SIDE ** len(expected):
        raise DataError(
            f"{path} is damaged (not an idx file of {SIDE}x{SIDE} images or labels): fetch it again. {HELP}"
        )
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=header)


def _draw(labels: Tensor, count: int, seed: int) -> Tensor:
    """Draw `count` indices of each class, one row a class."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for label in range(CLASSES):
        found = (labels == label).nonzero().flatten()
        if len(found) < count:
            raise DataError(f"class {label} has {len(found)} training images, {count} are needed. {HELP}")
        rows.append(found[torch.randperm(len(found), generator=generator)[:count]])
    return torch.stack(rows)


def _scaled(part: Part, index: Tensor) -> Part:
    return Part(part.x[index].unsqueeze(1).float().div_(255), part.y[index])
