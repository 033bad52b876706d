"""What a data set is once it is read."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


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


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as it is published: images as bytes (n, channels, height, width), labels as int64.

    `source` says in words what was read, for a report; `classes` names the classes in the order of the labels.
    """

    name: str
    source: str
    classes: tuple[str, ...]
    train: Part
    test: Part


def scaled(part: Part, rows: Tensor | None = None) -> Part:
    """Images with pixels in [0, 1], and their labels; `rows` picks and orders them."""
    x, y = part if rows is None else (part.x[rows], part.y[rows])
    return Part(x / 255, y)


def described(title: str, train: Part, test: Part, remark: str = "") -> str:
    """Say what was read: a title, and how many images."""
    return f"{title} ({len(train.y):,} + {len(test.y):,} images{remark})"
