"""Masks as things of their own: saved to a file, compared, laid on another model of the same kind.

Masks are a `dict[str, Tensor]` of bool by parameter name, True where a weight is alive, as `pruner.masks` gives them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.masking import check_masks
from prunewald.model.modules import plain
from prunewald.storage.mask_file import load, save
from prunewald.util.tables import html_table, text_table
from prunewald.util.tensors import zero_

__all__ = ["LayerOverlap", "Overlap", "apply_", "compare", "load", "save"]

_HEAD = ("layer", "weights", "kept a", "kept b", "both", "a's in b", "by chance", "Jaccard", "by chance")


@dataclass(frozen=True)
class LayerOverlap:
    """How two masks of one tensor overlap: how many weights each keeps, and how many both do.

    What is "by chance" is expected of two masks that keep as many weights each, at places drawn at random. Shares of
    nothing are NaN.
    """

    name: str
    weights: int
    kept_a: int
    kept_b: int
    both: int
    both_by_chance: float

    @property
    def share(self) -> float:
        """Of the weights that a keeps, the share that b keeps too."""
        return _ratio(self.both, self.kept_a)

    @property
    def share_by_chance(self) -> float:
        """The share to expect by chance: as large as that of all weights which b keeps."""
        return _ratio(self.both_by_chance, self.kept_a)

    @property
    def jaccard(self) -> float:
        """Jaccard's index (1901): of the weights that a or b keeps, the share that both keep."""
        return _ratio(self.both, self.kept_a + self.kept_b - self.both)

    @property
    def jaccard_by_chance(self) -> float:
        """Jaccard's index if as many were in both as chance would give."""
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
        """All layers together.

        Chance draws places within each layer, so to agree on how much each layer keeps counts for nothing.
        """
        fields = ("weights", "kept_a", "kept_b", "both", "both_by_chance")
        return LayerOverlap("total", *(sum(getattr(layer, field) for layer in self.layers) for field in fields))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"total": self.total.to_dict(), "layers": [layer.to_dict() for layer in self.layers]}

    def __str__(self) -> str:
        return text_table(_HEAD, [_cells(layer) for layer in self.layers], total=_cells(self.total))

    def _repr_html_(self) -> str:
        return html_table(_HEAD, [_cells(layer) for layer in self.layers], total=_cells(self.total))


def compare(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Overlap:
    """Compare the masks of two prunings of one kind of model, beside what chance would give."""
    check_masks(a, empty=False, what="masks a")
    check_masks(b, a, every=True, what="masks b, beside a")
    return Overlap([_overlap(name, mask, b[name].to(mask.device)) for name, mask in a.items()])


@torch.no_grad()
def apply_(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set a model's pruned weights to zero, once: a fresh model, or one rewound to an earlier checkpoint.

    Nothing holds the zeros when it trains on: for that, `pruner.set_masks(masks)`. On any error the model is as it was.
    """
    params = dict(plain(model).named_parameters(remove_duplicate=False))  # a tied weight by any of its names
    check_masks(masks, params, empty=False, what=f"masks for a {type(plain(model)).__name__}")
    for name, mask in masks.items():
        zero_(params[name], mask.to(params[name].device))


def _overlap(name: str, a: Tensor, b: Tensor) -> LayerOverlap:
    n, kept_a, kept_b, both = a.numel(), int(a.sum()), int(b.sum()), int((a & b).sum())
    return LayerOverlap(name, n, kept_a, kept_b, both, kept_a * kept_b / max(n, 1))


def _ratio(some: float, whole: float) -> float:
    return some / whole if whole else math.nan


def _cells(row: LayerOverlap) -> tuple[str, ...]:
    counts = (row.weights, row.kept_a, row.kept_b, row.both)
    shares = (row.share, row.share_by_chance, row.jaccard, row.jaccard_by_chance)
    return (row.name, *(f"{n:,}" for n in counts), *("-" if math.isnan(s) else f"{s:.1%}" for s in shares))
