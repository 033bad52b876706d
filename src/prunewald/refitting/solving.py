"""Least squares for the weights that are left: a mask that is fixed, a ridge towards the present weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.refitting import exact
from prunewald.refitting.iterating import by_steps
from prunewald.util.arguments import real

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # from which one is chosen, as shares of the mean square of the inputs
# Directions in which the inputs have less than this share of their mean square are taken as ones of no information:
# what a Gram matrix says of them is rounding, where products are in single precision.
_FLOOR = 1e-6
_JUDGES = 256  # rows that choose a ridge for all
# Multiplications of a factorisation: so many take less than a second of one core, or are worth as many in products of
# large matrices, of which conjugate gradients need some 40 a row and entry of the Gram matrix.
_ANYWAY, _STEPS = 3e9, 5


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

    def rows(self, at: Tensor) -> "Gram":
        """The sums of some of the rows."""
        return replace(self, cross=self.cross[at], outputs=self.outputs[at])

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


def solve(gram: Gram, weight: Tensor, mask: Tensor, ridge: float, *, exactly: bool | None = None) -> Tensor:
    """The weights, zero where the mask is False, with the least Σ |y - W x|² + ridge · mean |x_j|² · |W - weight|².

    The bias, the last column where the Gram has one, is always free and has no ridge. With ridge=0 and fewer examples
    than inputs it is the solution that is closest to the present weights, the limit of ever smaller ridges. A row is
    never worse by this measure than it was. In the type of `weight`.

    By a factorisation of each row where that is cheap by the sum over the rows of survivors cubed, else by conjugate
    gradients to about 1 % of the error; `exactly` says which. These leave what they hardly gain by as it is.
    """
    problem = _Problem(gram, weight, mask, exactly)
    return problem.solved(ridge)[0]


def best_ridge(fit: Gram, held: Gram, weight: Tensor, mask: Tensor, ridges: Sequence[float] = RIDGES) -> Refitted:
    """The weights of the ridge that does best on `held`, examples that are not in `fit`; as they were if none helps.

    Of more than 256 rows, so many at even distances tell which ridge it is, and all are solved once; whether that helps
    is asked of all. The strongest is solved first, and each solution is the start of the next.
    """
    before = float(error(held, weight).sum())
    few = torch.arange(0, len(weight), -(-len(weight) // _JUDGES), device=weight.device)
    trial = _Problem(fit.rows(few), weight[few], mask[few], None)
    judge, start = held.rows(few), None
    best = as_before = Refitted(None, weight, before, before)
    least = float(error(judge, weight[few]).sum())
    for ridge in sorted(ridges, reverse=True):
        solved, start = trial.solved(ridge, start)
        if (left := float(error(judge, solved).sum())) < least:
            best, least = Refitted(ridge, solved, before, left), left
    if best.ridge is not None and len(few) < len(weight):
        solved = _Problem(fit, weight, mask, None).solved(best.ridge)[0]
        best = Refitted(best.ridge, solved, before, float(error(held, solved).sum()))
    return best if best.after < before else as_before


class _Problem:
    """What all ridges share: the equations of the change from the present weights, once the bias is what is best."""

    def __init__(self, gram: Gram, weight: Tensor, mask: Tensor, exactly: bool | None):
        _check(gram, weight, mask)
        alive = mask.clone()
        if gram.bias:
            alive[:, -1] = True
        self.gram, self.dtype = gram, weight.dtype
        self.present = (weight * alive).double()
        self.inputs = gram.inputs.double()
        self.residual = gram.cross.double() - self.present @ self.inputs
        self.width = len(self.inputs) - gram.bias
        squares = self.inputs.diagonal()[: self.width]
        self.mean = float(squares.mean())
        self.free = alive[:, : self.width] & (squares > 0)
        self.system, right = _centred(self.inputs, self.residual) if gram.bias else (self.inputs, self.residual)
        self.right = right * self.free
        self.exactly = _cheap(self.free) if exactly is None else exactly

    def solved(self, ridge: float, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The weights of a ridge, and the change that a next one can start from."""
        penalty = real("ridge", ridge, least=0) * self.mean
        if self.exactly:
            lift = max(_FLOOR * self.mean - penalty, 0.0)
            change = exact.by_rows(self.system, self.right, self.free, penalty, lift)
        else:
            before = self.gram.outputs.double() - (self.present * (self.gram.cross + self.residual)).sum(1)
            if self.gram.bias:
                before = before - self.residual[:, -1].square() / self.inputs[-1, -1]
            change = by_steps(self.system, self.right, self.free, penalty, before.clamp(min=0), start)
        return self._kept(change, penalty), change

    def _kept(self, change: Tensor, penalty: float) -> Tensor:
        """The present weights so changed, their bias too, but for rows that would be no better after rounding."""
        if self.gram.bias:
            rest = (self.residual[:, -1] - change @ self.inputs[:-1, -1]) / self.inputs[-1, -1]
            change = torch.cat([change, rest.unsqueeze(1)], 1)
        found = (self.present + change).to(self.dtype)
        change = found.double() - self.present
        gained = (change * (2 * self.residual - change @ self.inputs)).sum(1)
        gained -= penalty * change[:, : self.width].square().sum(1)
        return torch.where((gained > 0).unsqueeze(1), found, self.present.to(self.dtype))


def _cheap(alive: Tensor) -> bool:
    """Whether a factorisation of each row is cheaper than steps for all of them, or cheap anyway."""
    rows, width = alive.shape
    return exact.cost(alive) / 3 <= max(_ANYWAY, _STEPS * rows * width**2)


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
