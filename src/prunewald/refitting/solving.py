"""Least squares for the weights that are left: a mask that is fixed, a ridge towards the present weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from prunewald.refitting import exact
from prunewald.refitting.iterating import SHARED, Steps
from prunewald.util.arguments import real
from prunewald.util.memory import give_back

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # from which one is chosen, as shares of the mean square of the inputs
# Directions in which the inputs have less than this share of their mean square are taken as ones of no information:
# what a Gram matrix says of them is rounding, where products are in single precision.
_FLOOR = 1e-6
_JUDGES = 128  # rows that choose a ridge for all
_ROOM = 1 << 26  # bytes that the rows which are solved at a time take
# Survivors cubed over three, summed over the rows, are the multiplications of a factorisation each. Up to 1e9 take .1 s
# of one core. Beyond, on one core, conjugate gradients were as quick at about one for each row and entry of the Gram
# matrix: 4.0 s against 5.9 s at 1.4 (1,024 rows over 4,096 inputs, 90 % pruned), 0.38 s against 0.25 s at 0.3 (over
# 1,024 inputs), 0.5 s against 3.6 s at 43 (the same at 50 %). A factorisation takes little memory, but time by a ridge.
_ANYWAY, _STEPS = 1e9, 1


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
    _check(gram, weight, mask)
    system = _System(gram)
    return _solved(system, gram, weight, mask, ridge, _cheap(mask[:, : system.width]) if exactly is None else exactly)


def best_ridge(fit: Gram, held: Gram, weight: Tensor, mask: Tensor, ridges: Sequence[float] = RIDGES) -> Refitted:
    """The weights of the ridge that does best on `held`, examples that are not in `fit`; as they were if none helps.

    Of more than 128 rows, so many at even distances tell which ridge it is, and all are solved once; whether that helps
    is asked of all. The strongest is solved first, and each solution is the start of the next.
    """
    _check(fit, weight, mask)
    _check(held, weight, mask)
    before = float(error(held, weight).sum())
    few = torch.arange(0, len(weight), max(1, -(-len(weight) // _JUDGES)), device=weight.device)
    system, judge, start = _System(fit), held.rows(few), None
    trial, exactly = _Rows(system, fit.rows(few), weight[few], mask[few]), _cheap(mask[:, : system.width])
    best = as_before = Refitted(None, weight, before, before)
    least = float(error(judge, weight[few]).sum())
    for ridge in sorted(ridges, reverse=True):
        found, start = trial.solved(ridge, exactly, start)
        if (left := float(error(judge, found).sum())) < least:
            best, least = Refitted(ridge, found, before, left), left
    if best.ridge is not None and len(few) < len(weight):
        found = _solved(system, fit, weight, mask, best.ridge, exactly)
        best = Refitted(best.ridge, found, before, float(error(held, found).sum()))
    return best if best.after < before else as_before


def _solved(system: "_System", gram: Gram, weight: Tensor, mask: Tensor, ridge: float, exactly: bool) -> Tensor:
    """All rows, as many at a time as fit in memory."""
    found = torch.empty_like(weight)
    for rows in torch.arange(len(weight), device=weight.device).split(system.rows_at_once):
        give_back()
        found[rows] = _Rows(system, gram.rows(rows), weight[rows], mask[rows]).solved(ridge, exactly)[0]
    return found


class _System:
    """What all rows of a Gram share: the equations of the weights, once the bias is what is best for each choice."""

    def __init__(self, gram: Gram):
        self.inputs, self.bias = gram.inputs.double(), gram.bias
        self.width = len(self.inputs) - gram.bias
        self.squares = self.inputs.diagonal()[: self.width]
        self.mean = float(self.squares.mean())
        self.centre: Tensor | None = None
        self.centred = self.inputs
        if gram.bias:
            self.centre = self.inputs[-1, :-1] / self.inputs[-1, -1]
            self.centred = torch.addr(self.inputs[:-1, :-1], self.inputs[-1, :-1], self.centre, alpha=-1)
        self.rows_at_once = max(1, _ROOM // (80 * self.width + 12 * SHARED**2))

    @cached_property
    def steps(self) -> Steps:
        """The same, prepared for conjugate gradients."""
        return Steps(self.centred)


class _Rows:
    """Some rows: what is free in them, and what is left of their targets by the present weights."""

    def __init__(self, system: _System, gram: Gram, weight: Tensor, mask: Tensor):
        self.system, self.dtype, cross = system, weight.dtype, gram.cross.double()
        self.free = mask[:, : system.width] & (system.squares > 0)
        self.present = weight.double()
        self.present[:, : system.width] *= mask[:, : system.width]
        self.residual = cross - self.present @ system.inputs
        self.before = gram.outputs.double() - (self.present * (cross + self.residual)).sum(1)
        self.right = self.residual
        if system.centre is not None:
            last = self.residual[:, -1]
            self.right = torch.addr(self.residual[:, :-1], last, system.centre, alpha=-1)
            self.before = self.before - last.square() / system.inputs[-1, -1]
        self.right = self.right * self.free

    def solved(self, ridge: float, exactly: bool, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The weights of a ridge, and the change that a next one can start from."""
        system, penalty = self.system, real("ridge", ridge, least=0) * self.system.mean
        if exactly:
            lift = max(_FLOOR * system.mean - penalty, 0.0)
            change = exact.by_rows(system.centred, self.right, self.free, penalty, lift)
        else:
            change = system.steps.solved(self.right, self.free, penalty, self.before.clamp(min=0), start)
        return self._kept(change, penalty), change

    def _kept(self, change: Tensor, penalty: float) -> Tensor:
        """The present weights so changed, their bias too, but for rows that would be no better after rounding."""
        inputs, width = self.system.inputs, self.system.width
        if self.system.centre is not None:
            rest = (self.residual[:, -1] - change @ inputs[:-1, -1]) / inputs[-1, -1]
            change = torch.cat([change, rest.unsqueeze(1)], 1)
        found = (self.present + change).to(self.dtype)
        change = found.double() - self.present
        gained = (change * (2 * self.residual - change @ inputs)).sum(1) - penalty * change[:, :width].square().sum(1)
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
