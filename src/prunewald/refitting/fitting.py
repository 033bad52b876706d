"""One layer refitted: its rows by what is free in them, and the ridge that the examples held back choose."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunewald.refitting.solving import Gram, best_ridge, error
from prunewald.refitting.sums import Sums


@dataclass(frozen=True)
class Matrix:
    """A layer's weights as rows, with the bias as a last column where the layer has one that may change."""

    weight: Tensor  # (rows, d) or (rows, d + 1)
    mask: Tensor  # (rows, d)
    free: Tensor | None  # (rows,): where the bias may change; None: there is none


@dataclass(frozen=True)
class Fit:
    """What became of a layer: its rows, and the errors on examples held back, as shares of the targets' squares."""

    weight: Tensor
    ridges: tuple[float, ...]
    before: float
    after: float


def fit(matrix: Matrix, fitted: Sums, held: Sums, ridges: Sequence[float]) -> Fit:
    """The weights of the ridge that does best on `held`, by group; where none helps, as they were."""
    parts, chosen, before, after, total = [], set[float](), 0.0, 0.0, 0.0
    bias = matrix.free is not None
    pairs = list(zip(fitted.grams(bias), held.grams(bias), strict=True))
    for (one, other), rows in zip(pairs, _groups(len(matrix.weight), len(pairs)), strict=True):
        part = Matrix(matrix.weight[rows], matrix.mask[rows], None if matrix.free is None else matrix.free[rows])
        found = _group(part, one, other, ridges)
        parts.append(found.weight)
        chosen.update(found.ridges)
        before += found.before
        after += found.after
        total += float(other.outputs.sum())
    scale = total or 1.0
    return Fit(torch.cat(parts), tuple(sorted(chosen)), before / scale, after / scale)


def _groups(rows: int, groups: int) -> list[slice]:
    each = rows // groups
    return [slice(at * each, (at + 1) * each) for at in range(groups)]


def _group(matrix: Matrix, one: Gram, other: Gram, ridges: Sequence[float]) -> Fit:
    """The rows of a group: those whose bias is free, those that have survivors but no free bias, and the rest."""
    weight = matrix.weight.clone()
    picked: set[float] = set()
    before = after = 0.0
    fixed = torch.ones(len(weight), dtype=torch.bool, device=weight.device) if matrix.free is None else ~matrix.free
    some = fixed & matrix.mask.any(1)
    for rows, bias in ((~fixed, True), (some, False)):
        if not bool(rows.any()):
            continue
        end = None if bias or matrix.free is None else -1
        offset = None if end is None else matrix.weight[rows, -1]
        mask = matrix.mask[rows]
        if bias:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        fitted, held = (_of(gram, rows, end, offset) for gram in (one, other))
        found = best_ridge(fitted, held, weight[rows][:, :end], mask, ridges)
        before, after = before + found.before, after + found.after
        if found.ridge is not None:
            picked.add(found.ridge)
            weight[rows, : found.weight.shape[1]] = found.weight
    if bool((rest := fixed & ~some).any()):
        left = float(error(_of(other, rest, None, None), weight[rest]).sum())
        before, after = before + left, after + left
    return Fit(weight, tuple(sorted(picked)), before, after)


def _of(gram: Gram, rows: Tensor, end: int | None, offset: Tensor | None) -> Gram:
    """The Gram of some rows; without the 1 among the inputs, the targets less the bias that stays as it is."""
    if end is None and bool(rows.all()):
        return gram
    cross, outputs = gram.cross[rows], gram.outputs[rows]
    if end is None:
        return replace(gram, cross=cross, outputs=outputs)
    assert offset is not None
    kept = offset.double()
    outputs = outputs - 2 * kept * cross[:, -1] + kept.square() * gram.inputs[-1, -1]
    cross = cross - kept.unsqueeze(1) * gram.inputs[-1]
    return Gram(gram.inputs[:end, :end], cross[:, :end], outputs, gram.count)
