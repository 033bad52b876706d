"""How many weights does each tensor keep? Allocations give counts, so they fit every criterion and every pattern."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from prunewald.core.base import Allocation
from prunewald.core.lamp import Samples, lamp_kept
from prunewald.core.ranking import Scores, counts_below
from prunewald.util.arguments import one_of
from prunewald.util.registry import allocation
from prunewald.util.tensors import accumulator, pieces


def layer_count(size: int, sparsity: float) -> int:
    """How many of `size` weights stay; at least one, since a layer without weights passes nothing on."""
    return max(size - round(sparsity * size), 1)


@allocation("layer")
@dataclass(frozen=True)
class Layer(Allocation):
    """Every tensor is pruned to the same sparsity."""

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """The count that brings each tensor to the sparsity."""
        return {name: layer_count(size, sparsity) for name, size in scores.sizes.items()}


@allocation("module")
@dataclass(frozen=True)
class Module(Allocation):
    """Every module is pruned to the same sparsity, its targets counted as one: weight and bias, an LSTM's two matrices.

    They have one count, one order, and one std for lambda (`relative_to="layer"`). Biases are in it where they are
    targets: `targets=["fc1", "fc1.bias"]`. The layers of a recurrent module are apart, and so are single experts.
    """

    whole_layers: ClassVar[bool] = True

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """How many weights of each tensor the order of its module keeps."""
        return {name: count for layer in scores.by_layer() for name, count in _in_common(layer, sparsity).items()}


@allocation("row")
@dataclass(frozen=True)
class Row(Allocation):
    """Every row of every tensor is pruned to the same sparsity, as in Wanda (Sun et al. 2024).

    A row is the weights of one output: an index of dimension 0, or of another where the layout of the layer says so; a
    vector is one row.
    """

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, Tensor]:
        """The count that brings each row to the sparsity."""
        shapes = scores.shapes | {n: layout.swapped(scores.shapes[n]) for n, layout in scores.layouts.items()}
        rows = {name: shapes[name][0] if len(shapes[name]) > 1 else 1 for name in scores}
        counts = {n: layer_count(size // rows[n], sparsity) for n, size in scores.sizes.items()}
        return {n: torch.full((rows[n],), count, device="cpu") for n, count in counts.items()}


@allocation("global")
@dataclass(frozen=True)
class Global(Allocation):
    """One order over all tensors together; a tensor may lose all its weights."""

    together: ClassVar[bool] = True

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """How many weights of each tensor the common order keeps."""
        return _in_common(scores, sparsity)


@allocation("lamp")
@dataclass(frozen=True)
class LAMP(Allocation):
    """One order over all tensors, by the share of each weight in what is left of its tensor.  Lee et al. (2021).

    The counts are those of the magnitudes: w² over the sum of the squares from it upwards, which rises to 1 in every
    tensor: none loses its last weight, and none is brought back. A tensor of zeros alone has none to lose, and goes
    whole, with a warning. Which weights of a tensor stay is the criterion's to say. With `of="score"` the criterion's
    own scores stand for |w| in the counts too: a heavy tail of scores then all but empties their tensor.
    """

    of: str = "magnitude"

    def __post_init__(self) -> None:
        one_of("of", self.of, ("magnitude", "score"))

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """How many weights of each tensor the common order keeps."""
        keep = layer_count(sum(scores.sizes.values()), sparsity)
        values = {name: partial(_sizes if self.of == "magnitude" else _scores, scores, name) for name in scores.sizes}
        samples = scores.found.get(repr(self))
        if samples is None:
            samples = scores.found[repr(self)] = Samples.of(values, scores.sizes)
        kept = lamp_kept(samples, values, keep)
        return _in_common(scores, sparsity) if kept is None else kept


@allocation("erk")
@dataclass(frozen=True)
class ERK(Allocation):
    """Density in proportion to the sum of a tensor's dimensions over their product.  Evci et al. (2020).

    Erdős–Rényi–Kernel: a tensor that this would overfill stays dense, and the others share the rest.
    """

    def __call__(self, scores: Scores, sparsity: float) -> dict[str, int]:
        """Counts in proportion to the sums of the dimensions."""
        total = max(layer_count(sum(scores.sizes.values()), sparsity), len(scores))
        return apportion({name: max(sum(shape), 1) for name, shape in scores.shapes.items()}, scores.sizes, total)


def _sizes(scores: Scores, name: str) -> Iterator[Tensor]:
    weight = scores.weight(name)
    wide = accumulator(weight)
    return (piece.to(wide).abs() for piece in pieces(weight))


def _scores(scores: Scores, name: str) -> Iterator[Tensor]:
    return (piece.clamp(min=0) for piece in pieces(scores[name].score))


def apportion(shares: Mapping[str, int], sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Whole numbers in proportion to `shares`, each from 1 to its size, that add up to `total`.

    All are rounded to the nearest at one common factor (Webster's rule). Largest remainders would be simpler, but can
    give a tensor more when the total shrinks (the Alabama paradox), and pruning brings nothing back.
    """
    factor = _common_factor(shares, sizes, total)
    counts = {n: min(max(int(factor * share + Fraction(1, 2)), 1), sizes[n]) for n, share in shares.items()}
    place = {name: i for i, name in enumerate(shares)}

    def due(name: str, count: int) -> tuple[Fraction, int]:
        """The factor from which on a tensor keeps `count` weights; equal ones go by the order of the tensors."""
        return Fraction(2 * count - 1, 2 * shares[name]), place[name]

    while (kept := sum(counts.values())) < total:
        counts[min((n for n in counts if counts[n] < sizes[n]), key=lambda n: due(n, counts[n] + 1))] += 1
    while kept > total:
        counts[max((n for n in counts if counts[n] > 1), key=lambda n: due(n, counts[n]))] -= 1
        kept -= 1
    return counts


def _common_factor(shares: Mapping[str, int], sizes: Mapping[str, int], total: int) -> Fraction:
    """What the shares are multiplied by to reach the total, where none may exceed its size."""
    free, rest = set(shares), total
    while True:
        factor = Fraction(rest, sum(shares[name] for name in free))
        full = {name for name in free if factor * shares[name] > sizes[name]}
        if not full:
            return factor
        free -= full
        rest -= sum(sizes[name] for name in full)


def _in_common(scores: Scores, sparsity: float) -> dict[str, int]:
    """How many weights of each tensor stay where one order over all tensors decides."""
    total = sum(scores.sizes.values())
    pruned = counts_below(scores, total - layer_count(total, sparsity))
    return {name: size - pruned[name] for name, size in scores.sizes.items()}
