"""How many weights does each tensor keep? Allocations give counts, so they fit every criterion and every pattern."""

from dataclasses import dataclass
from typing import Protocol

from prunewald.registry import allocation
from prunewald.selection import Scores, counts_below


class Allocation(Protocol):
    """Shares out a sparsity among tensors."""

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """The number of weights each tensor keeps."""


def layer_count(size: int, sparsity: float) -> int:
    """How many of `size` weights stay; at least one, since a layer without weights passes nothing on."""
    return max(size - round(sparsity * size), 1)


@allocation("layer")
@dataclass(frozen=True)
class Layer:
    """Every tensor is pruned to the same sparsity."""

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """The same share of each."""
        return {name: layer_count(size, sparsity) for name, size in scores.sizes.items()}


@allocation("global")
@dataclass(frozen=True)
class Global:
    """One order over all tensors together; a tensor may lose all its weights."""

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """What the common order leaves of each."""
        total = sum(scores.sizes.values())
        pruned = counts_below(scores, total - layer_count(total, sparsity))
        return {name: size - pruned[name] for name, size in scores.sizes.items()}
