"""Make the data the package carries: a balanced part of Fashion-MNIST.

python tools/make_embedded.py FOLDER, where FOLDER holds the four idx .gz files (Debian's package
dataset-fashion-mnist installs such a folder). The result is the same to the byte on every run with the
same liblzma.
"""

import argparse
import hashlib
import lzma
from pathlib import Path

import torch
from torch import Tensor

from prunewald.lab.data import EMBEDDED, load

TARGET = Path(__file__).resolve().parent.parent / "src/prunewald/lab/embedded"
# Neighbouring images of one class compress best as they are: predictors and delta filters cost 3 to 10 %.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def first_of_each_class(images: Tensor, labels: Tensor, count: int) -> Tensor:
    """The first `count` images of every class, class by class."""
    return torch.cat([images[labels == label][:count] for label in range(10)])


def main() -> None:
    """Write one .xz a part and their checksums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="the folder with the four idx .gz files")
    full = load("fashion-mnist", parser.parse_args().folder)
    sums = []
    for (name, count), (images, labels) in zip(EMBEDDED.items(), (full.train, full.test), strict=True):
        raw = first_of_each_class(images, labels, count).numpy().tobytes()
        packed = lzma.compress(raw, format=lzma.FORMAT_XZ, filters=FILTERS)
        (TARGET / name).write_bytes(packed)
        sums.append(f"{hashlib.sha256(packed).hexdigest()}  {name}\n")
        print(f"{name}: {len(raw):,} bytes in {len(packed):,}")
    (TARGET / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
