"""Masks as things of their own: kept in a file, compared, laid on another model of the same kind.

Masks are a `dict[str, Tensor]` of bool by parameter name, True where a weight is alive, as `pruner.masks` gives them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.storage.mask_file import check_bool, load, save
from prunewald.util.tensors import zero_

__all__ = ["LayerOverlap", "Overlap", "apply_", "compare", "load", "save"]

_SHOWN = 5


@dataclass(frozen=True)
class LayerOverlap:
    """How two masks of one tensor overlap; shares are NaN where there is nothing to share.

    By chance means: with as many weights kept in each, at places drawn at random.
    """

    name: str
    weights: int
    kept_a: int
    kept_b: int
    both: int
    both_by_chance: float  # expected

    @property
    def share(self) -> float:
        """The share of a's kept weights that b keeps."""
        return _ratio(self.both, self.kept_a)

    @property
    def share_by_chance(self) -> float:
        """The share to expect by chance: that of all weights that b keeps."""
        return _ratio(self.both_by_chance, self.kept_a)

    @property
    def jaccard(self) -> float:
        """Kept by both, of those kept by either."""
        return _ratio(self.both, self.kept_a + self.kept_b - self.both)

    @property
    def jaccard_by_chance(self) -> float:
        """The same at the number in both that chance would give."""
        return _ratio(self.both_by_chance, self.kept_a + self.kept_b - self.both_by_chance)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; None for NaN."""
        shares = ("share", "share_by_chance", "jaccard", "jaccard_by_chance")
        found = {name: getattr(self, name) for name in shares}
        return asdict(self) | {name: None if math.isnan(value) else value for name, value in found.items()}


@dataclass(frozen=True)
class Overlap:
    """How the masks of two prunings overlap, by layer and in total. Prints as a table."""

    layers: Sequence[LayerOverlap]

    @property
    def total(self) -> LayerOverlap:
        """All layers together; chance draws within each, so to agree on how much each one keeps counts for nothing."""
        fields = ("weights", "kept_a", "kept_b", "both", "both_by_chance")
        return LayerOverlap("total", *(sum(getattr(layer, field) for layer in self.layers) for field in fields))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"total": self.total.to_dict(), "layers": [layer.to_dict() for layer in self.layers]}

    def __str__(self) -> str:
        head = ("layer", "weights", "kept a", "kept b", "both", "a's in b", "by chance", "Jaccard", "by chance")
        table = [head, *map(_cells, self.layers), _cells(self.total)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]) for name, *numbers in table]
        rule = "-" * len(lines[0])
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def compare(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Overlap:
    """Compare the masks of two prunings of one kind of model, beside what chance would give."""
    check_bool(a, "the masks a")
    check_bool(b, "the masks b")
    differences = [f"{name!r} is in a only" for name in a if name not in b]
    differences += [f"{name!r} is in b only" for name in b if name not in a]
    differences += [
        f"{name!r} is {tuple(a[name].shape)} in a, {tuple(b[name].shape)} in b"
        for name in a
        if name in b and a[name].shape != b[name].shape
    ]
    if differences:
        raise ValueError(
            f"masks of different weights: {_some(differences)}. Give those of the same kind of model, or only the "
            "entries that both have"
        )
    return Overlap([_overlap(name, mask, b[name].to(mask.device)) for name, mask in a.items()])


@torch.no_grad()
def apply_(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set a model's pruned weights to zero, once: a fresh model, or one rewound to an earlier checkpoint.

    Nothing holds the zeros when it trains on: for that, `pruner.set_masks(masks)`. On any error the model is as it was.
    """
    check_bool(masks)
    plain: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    params = dict(plain.named_parameters(remove_duplicate=False))  # a tied weight by any of its names
    if differences := [reason for name, mask in masks.items() if (reason := _misfit(name, mask, params.get(name)))]:
        raise ValueError(
            f"these masks do not fit this {type(plain).__name__}: {_some(differences)}. Give a model of the kind they "
            "were made for, or only the masks it has weights for"
        )
    for name, mask in masks.items():
        zero_(params[name], mask.to(params[name].device))


def _misfit(name: str, mask: Tensor, param: Tensor | None) -> str | None:
    if param is None:
        return f"{name!r} is no parameter of the model"
    if nn.parameter.is_lazy(param) or param.is_meta:
        return f"{name!r} has no values in the model yet"
    if mask.shape != param.shape:
        return f"{name!r} is {tuple(mask.shape)} in the masks, {tuple(param.shape)} in the model"
    return None


def _overlap(name: str, a: Tensor, b: Tensor) -> LayerOverlap:
    n, kept_a, kept_b, both = a.numel(), int(a.sum()), int(b.sum()), int((a & b).sum())
    return LayerOverlap(name, n, kept_a, kept_b, both, kept_a * kept_b / max(n, 1))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _some(differences: Sequence[str]) -> str:
    return "; ".join(differences[:_SHOWN]) + ("; ..." if len(differences) > _SHOWN else "")


def _cells(row: LayerOverlap) -> tuple[str, ...]:
    counts = (row.weights, row.kept_a, row.kept_b, row.both)
    shares = (row.share, row.share_by_chance, row.jaccard, row.jaccard_by_chance)
    return (row.name, *(f"{n:,}" for n in counts), *("-" if math.isnan(s) else f"{s:.1%}" for s in shares))
