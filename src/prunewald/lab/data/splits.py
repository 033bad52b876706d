"""Training and validation rows of a training set, drawn anew for each seed."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.lab.data.images import DataError, Raw


class Split(NamedTuple):
    """Rows of the training part, so that many repetitions can share one resident tensor."""

    train: Tensor
    val: Tensor


@dataclass(frozen=True)
class Rule:
    """How a training set is split: `val` images for validation, or that fraction of all, and the rest for training.

    `per_class`: a balanced draw of so many images of each class comes first; both parts are balanced too.
    """

    val: int | float
    per_class: int | None = None

    def __post_init__(self) -> None:
        if not self.val > 0 or (isinstance(self.val, float) and self.val >= 1):
            raise ValueError(f"val {self.val}: give a number of images, or a fraction between 0 and 1, such as 0.1")
        if self.per_class is not None and self.per_class < 1:
            raise ValueError(f"per_class {self.per_class}: give 1 or more, or None for all images")

    def held_out(self, images: int) -> int:
        """The number of validation images among so many."""
        return self.val if isinstance(self.val, int) else round(self.val * images)


# The paper's, but for MNIST and ImageNet, where it says nothing.
RULES = {
    "fashion-mnist": Rule(val=600, per_class=600),
    "mnist": Rule(val=5000),
    "cifar10": Rule(val=5000),
    "imagenet100": Rule(val=0.1),
}


def split(raw: Raw, seed: int, rule: Rule | None = None) -> Split:
    """Draw training and validation rows by the data set's own rule, or by another one."""
    rule = RULES[raw.name] if rule is None else rule
    generator = torch.Generator().manual_seed(seed)
    if rule.per_class is not None:
        return _balanced(raw, rule, rule.per_class, generator)
    count = rule.held_out(len(raw.train.y))
    if not 0 < count < len(raw.train.y):
        raise DataError(f"{raw.source} cannot give {count:,} images for validation: there are {len(raw.train.y):,}")
    order = torch.randperm(len(raw.train.y), generator=generator)
    return Split(order[count:], order[:count])


def _balanced(raw: Raw, rule: Rule, per_class: int, generator: torch.Generator) -> Split:
    classes = len(raw.classes)
    count, odd = divmod(rule.held_out(per_class * classes), classes)
    if odd or not 0 < count < per_class:
        raise ValueError(
            f"val {rule.val}: give a multiple of the {classes} classes, below all {per_class * classes:,} images"
        )
    rows = []
    for label in range(classes):
        found = (raw.train.y == label).nonzero().flatten()
        if len(found) < per_class:
            raise DataError(f"{raw.source}: class {label} has {len(found)} training images, {per_class} are needed")
        rows.append(found[torch.randperm(len(found), generator=generator)[:per_class]])
    drawn = torch.stack(rows)
    return Split(drawn[:, count:].flatten(), drawn[:, :count].flatten())
