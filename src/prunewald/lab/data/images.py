"""What a data set is once it is read."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class DataError(ValueError):
    """The data asked for is missing or damaged."""


class Images(NamedTuple):
    """Images and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Dataset:
    """A data set in its three parts."""

    train: Images
    val: Images
    test: Images


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as it is published: images as bytes (n, channels, height, width), labels as int64.

    `source` says in words what was read, for a report; `classes` names the classes in the order of the labels.
    """

    name: str
    source: str
    classes: tuple[str, ...]
    train: Images
    test: Images


def scaled(part: Images, rows: Tensor | None = None) -> Images:
    """Images with pixels in [0, 1], and their labels; `rows` picks and orders them."""
    x, y = part if rows is None else (part.x[rows], part.y[rows])
    return Images(x / 255, y)


def described(title: str, train: Images, test: Images, remark: str = "") -> str:
    """Say what was read: a title, and how many images."""
    return f"{title} ({len(train.y):,} + {len(test.y):,} images{remark})"


def counted(source: str) -> tuple[int, int] | None:
    """How many images for training and for testing such a description names, if it is one."""
    found = re.search(r"\(([\d,]{1,15}) \+ ([\d,]{1,15}) images", source)
    train, test = (int("0" + number.replace(",", "")) for number in found.groups()) if found else (0, 0)
    return (train, test) if train and test else None
