"""Which weights of a tensor stay, given how many."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from prunewald.registry import pattern
from prunewald.selection import Ranked, smallest


class Pattern(Protocol):
    """Chooses the places to keep."""

    def __call__(self, ranked: Ranked, keep: int) -> Tensor:
        """True where a weight is kept."""


@pattern("element")
@dataclass(frozen=True)
class Element:
    """Any single weight may go: the lowest scores do."""

    def __call__(self, ranked: Ranked, keep: int) -> Tensor:
        """Keep the `keep` highest scores."""
        return smallest(ranked, ranked.score.numel() - keep).logical_not_()
