"""The part of Fashion-MNIST that the package carries; tools/make_embedded.py made it."""

import hashlib
import lzma
from importlib.resources import files

import torch

from prunewald.lab.data.idx import SIDE
from prunewald.lab.data.images import DataError, Images, Raw, described

EMBEDDED = {"train.xz": 600, "test.xz": 200}  # images of each class
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def embedded() -> Raw:
    """The embedded images, class by class; whatever the environment says."""
    train, test = (_unpack(name, count) for name, count in EMBEDDED.items())
    return Raw("fashion-mnist", described("embedded part of Fashion-MNIST", train, test), CLASSES, train, test)


def _unpack(name: str, count: int) -> Images:
    folder = files("prunewald.lab").joinpath("embedded")
    packed = folder.joinpath(name).read_bytes()
    sums = folder.joinpath("SHA256SUMS").read_text().splitlines()
    if f"{hashlib.sha256(packed).hexdigest()}  {name}" not in sums:
        raise DataError(f"embedded file {name} does not match its checksum: install prunewald again")
    pixels = torch.frombuffer(bytearray(lzma.decompress(packed)), dtype=torch.uint8)
    return Images(pixels.view(-1, 1, SIDE, SIDE), torch.arange(len(CLASSES)).repeat_interleave(count))
