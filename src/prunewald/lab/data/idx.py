"""The idx files of MNIST and Fashion-MNIST."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.lab.data.images import DataError, Images

SIDE, CLASSES = 28, 10
FIRST = "train-images*idx3-ubyte*"  # what tells such a folder

_IMAGES = bytes([0, 0, 8, 3])
_LABELS = bytes([0, 0, 8, 1])


class Sum(NamedTuple):
    """The MD5 of the .gz file, as published, and the SHA-256 of its contents, for files compressed anew."""

    packed: str
    contents: str


def read_idx(root: Path, sums: dict[str, Sum] | None) -> tuple[Images, Images]:
    """The training and test part; `sums` by the usual file name, or None to take any images of the right size."""
    train, test = (_read_part(root, prefix, sums) for prefix in ("train", "t10k"))
    return train, test


def _read_part(root: Path, prefix: str, sums: dict[str, Sum] | None) -> Images:
    images, _ = _read(root, f"{prefix}-images", "idx3-ubyte", sums)
    labels, path = _read(root, f"{prefix}-labels", "idx1-ubyte", sums)
    if len(labels) != len(images):
        raise DataError(f"{path} has {len(labels)} labels for {len(images)} images: fetch the files again")
    if len(labels) and int(labels.max()) >= CLASSES:
        raise DataError(f"{path} is damaged (label {int(labels.max())}, the largest is {CLASSES - 1}): fetch it again")
    return Images(images, labels.long())


def _read(root: Path, stem: str, kind: str, sums: dict[str, Sum] | None) -> tuple[Tensor, Path]:
    path = _find(root, stem, kind)
    packed = path.read_bytes()
    try:
        raw = gzip.decompress(packed) if path.suffix == ".gz" else packed
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}): fetch it again") from error
    values = _values(raw, images=kind == "idx3-ubyte")
    if values is None:
        raise DataError(
            f"{path} is damaged (not an idx file of {SIDE}x{SIDE} images or their labels, or cut short): fetch it again"
        )
    if sums is not None and not _known(packed, raw, sums[f"{stem}-{kind}"]):
        raise DataError(
            f"{path} does not match the published checksum: fetch it again (verify=False takes other data of this form)"
        )
    return values, path


def _find(root: Path, stem: str, kind: str) -> Path:
    for name in (f"{stem}-{kind}.gz", f"{stem}-{kind}", f"{stem}.{kind}.gz", f"{stem}.{kind}"):
        if (root / name).is_file():
            return root / name
    raise DataError(f"data folder {str(root)!r} has no {stem}-{kind}.gz: fetch all four idx files")


def _values(raw: bytes, images: bool) -> Tensor | None:
    """What the file holds, or None where it is not of the right form."""
    header, sizes = (16, (1, SIDE, SIDE)) if images else (8, ())
    count = int.from_bytes(raw[4:8], "big")
    shape = b"".join(size.to_bytes(4, "big") for size in sizes[1:])
    if raw[:4] != (_IMAGES if images else _LABELS) or raw[8:header] != shape:
        return None
    if not count or len(raw) - header != count * (SIDE * SIDE if images else 1):
        return None
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=header).view(count, *sizes)


def _known(packed: bytes, raw: bytes, expected: Sum) -> bool:
    return (
        hashlib.md5(packed, usedforsecurity=False).hexdigest() == expected.packed
        or hashlib.sha256(raw).hexdigest() == expected.contents
    )


MNIST = {
    "train-images-idx3-ubyte": Sum(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    ),
    "train-labels-idx1-ubyte": Sum(
        "d53e105ee54ea40749a09fcbcd1e9432", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    "t10k-images-idx3-ubyte": Sum(
        "9fb629c4189551a2d022fa330f9573f3", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    ),
    "t10k-labels-idx1-ubyte": Sum(
        "ec29112dd5afa0611ce80d1b7f02629c", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
}
FASHION_MNIST = {
    "train-images-idx3-ubyte": Sum(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
    ),
    "train-labels-idx1-ubyte": Sum(
        "25c81989df183df01b3e8a0aad5dffbe", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
    ),
    "t10k-images-idx3-ubyte": Sum(
        "bef4ecab320f06d8554ea6380940ec79", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    ),
    "t10k-labels-idx1-ubyte": Sum(
        "bb300cfdad3c16e7a12a480ee83cd310", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
    ),
}
