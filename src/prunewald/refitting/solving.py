"""Least squares for the weights that are left: a mask that is fixed, a ridge towards the present weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.refitting import exact
from prunewald.util.arguments import real

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # from which one is chosen, as shares of the mean square of the inputs
# Directions in which the inputs have less than this share of their mean square are taken as ones of no information:
# what a Gram matrix says of them is rounding, of the type in which its sums were taken.
_FLOOR = {torch.float64: 1e-8, torch.float32: 1e-5}


@dataclass(frozen=True)
class Gram:
    """Sums over the examples of rows that meet the same inputs: what least squares need, and no more.

    With `bias` the last entry of every x is 1. Two of them add up, over batches and over processes.
    """

    inputs: Tensor  # (d, d): sum of x x'
    cross: Tensor  # (rows, d): sum of y x'
    outputs: Tensor  # (rows,): sum of y²
    count: float  # how many examples or positions
    bias: bool = False

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *, bias: bool = False) -> "Gram":
        """The sums of inputs x (n, d) and targets y (n, rows), in float64; with `bias` a column of ones joins x."""
        x, y = x.double(), y.double()
        x = torch.cat([x, x.new_ones(len(x), 1)], 1) if bias else x
        return cls(x.T @ x, y.T @ x, y.square().sum(0), float(len(x)), bias)

    def __add__(self, other: "Gram") -> "Gram":
        """The sums over the examples of both."""
        if self.bias != other.bias or self.cross.shape != other.cross.shape:
            raise ValueError(f"{self.shown()} and {other.shown()}: only Grams of the same rows and inputs add up")
        inputs, cross, outputs = (a + b for a, b in zip(self.tensors(), other.tensors(), strict=True))
        return Gram(inputs, cross, outputs, self.count + other.count, self.bias)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three sums, for instance to add them up over processes in place."""
        return self.inputs, self.cross, self.outputs

    def shown(self) -> str:
        """What it is of, in a few words."""
        rows, width = self.cross.shape
        return f"a Gram of {rows:,} rows over {width:,} inputs{' with the bias' if self.bias else ''}"


class Refitted(NamedTuple):
    """What `best_ridge` found: None as the ridge where the weights are best left as they were."""

    ridge: float | None
    weight: Tensor
    before: float
    after: float


def error(gram: Gram, weight: Tensor) -> Tensor:
    """Σ |y - W x|² of each row over the examples of a Gram, in float64; at least zero."""
    weight = weight.double()
    cross, inputs = gram.cross.double(), gram.inputs.double()
    found: Tensor = gram.outputs.double() + ((weight @ inputs - 2 * cross) * weight).sum(1)
    return found.clamp(min=0)


def solve(gram: Gram, weight: Tensor, mask: Tensor, ridge: float) -> Tensor:
    """The weights, zero where the mask is False, with the least Σ |y - W x|² + ridge · mean |x_j|² · |W - weight|².

    The bias, the last column where the Gram has one, is always free and has no ridge. With ridge=0 and fewer examples
    than inputs it is the solution that is closest to the present weights, the limit of ever smaller ridges. A row is
    never worse by this measure than it was. In the type of `weight`.
    """
    real("ridge", ridge, least=0)
    _check(gram, weight, mask)
    alive = mask.clone()
    if gram.bias:
        alive[:, -1] = True
    present = (weight * alive).double()
    inputs = gram.inputs.double()
    residual = gram.cross.double() - present @ inputs
    width = len(inputs) - gram.bias
    squares = inputs.diagonal()[:width]
    scale = float(squares.mean())
    penalty = ridge * scale
    free = alive[:, :width] & (squares > 0)
    centred, right = _centred(inputs, residual) if gram.bias else (inputs, residual)
    lift = max(_FLOOR.get(gram.inputs.dtype, 1e-5) * scale - penalty, 0.0)
    change = exact.by_rows(centred, right * free, free, penalty, lift)
    if gram.bias:
        rest = (residual[:, -1] - change @ inputs[:-1, -1]) / inputs[-1, -1]
        change = torch.cat([change, rest.unsqueeze(1)], 1)
    found = (present + change).to(weight.dtype)
    change = found.double() - present  # as it is after rounding
    gain = (change * (2 * residual - change @ inputs)).sum(1) - penalty * change[:, :width].square().sum(1)
    return torch.where((gain > 0).unsqueeze(1), found, present.to(weight.dtype))


def best_ridge(fit: Gram, held: Gram, weight: Tensor, mask: Tensor, ridges: Sequence[float] = RIDGES) -> Refitted:
    """The weights of the ridge that does best on `held`, examples that are not in `fit`; as they were if none helps."""
    best = Refitted(None, weight, before := float(error(held, weight).sum()), before)
    for ridge in ridges:
        found = solve(fit, weight, mask, ridge)
        after = float(error(held, found).sum())
        if after < best.after:
            best = Refitted(ridge, found, before, after)
    return best


def _check(gram: Gram, weight: Tensor, mask: Tensor) -> None:
    if weight.shape != gram.cross.shape or mask.shape != weight.shape or mask.dtype != torch.bool:
        given = f"weight {tuple(weight.shape)} and mask {tuple(mask.shape)} in {mask.dtype}"
        raise ValueError(f"{given} for {gram.shown()}: give both in the shape of gram.cross, and the mask as bool")
    if not all(bool(sums.isfinite().all()) for sums in (*gram.tensors(), weight)):
        raise ValueError(f"{gram.shown()} or its weights hold NaN or infinite values: look at the data and the model")
    if gram.bias and not gram.inputs[-1, -1] > 0:
        raise ValueError(f"{gram.shown()} has no examples: give data")


def _centred(inputs: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The equations of the weights, once the bias is what is best for each choice of them."""
    means = inputs[-1, :-1] / inputs[-1, -1]
    centred = inputs[:-1, :-1] - torch.outer(inputs[:-1, -1], means)
    return centred, residual[:, :-1] - torch.outer(residual[:, -1], means)
