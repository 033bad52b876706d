"""Least squares under a mask, row by row: a Cholesky factorisation of what is left of the Gram matrix."""

from collections.abc import Iterator

import torch
from torch import Tensor

_PIECE = {"cpu": 1 << 24, "cuda": 1 << 28}  # bytes of submatrices that are factored at a time
_SHARED = 32  # rows with one mask of fewer survivors are not looked for: a factorisation each is as quick
_WASTE = 1.1  # rows are factored together whose survivors differ by no more than this
_BLOCK = 32  # columns that are factored at a time; the rest of the work are products of matrices
_ROUNDS = 2  # after which a lift of the diagonal has gone from every direction but those without information


def by_rows(inputs: Tensor, residual: Tensor, alive: Tensor, ridge: float, lift: float) -> Tensor:
    """The change d of each row, zero where not `alive`, that solves (inputs + ridge) d = residual over the others.

    With `lift`, which is added to the diagonal so that the factorisation exists, and taken from the solution again by
    repeating, directions of no information get no change.
    """
    change = torch.zeros_like(residual)
    single, shared = _grouped(alive)
    for rows in shared:
        at = alive[rows[0]].nonzero()[:, 0]
        part = inputs[at][:, at].unsqueeze(0)
        part.diagonal(dim1=1, dim2=2).add_(ridge + lift)
        solved = _solved(part, residual[rows][:, at].T.unsqueeze(0), lift)
        change[rows.unsqueeze(1), at] = solved[0].T
    for rows, at, valid in _batches(single, alive):
        parts = inputs[at.unsqueeze(2), at.unsqueeze(1)]
        parts.diagonal(dim1=1, dim2=2).add_(ridge + lift)
        if not bool(valid.all()):
            parts *= valid.unsqueeze(2) & valid.unsqueeze(1)
            parts.diagonal(dim1=1, dim2=2)[~valid] = 1.0
        right = residual[rows].gather(1, at) * valid
        solved = _solved(parts, right.unsqueeze(2), lift).squeeze(2)
        change[rows] = change[rows].scatter(1, at, solved * valid)
    return change


def cost(alive: Tensor) -> float:
    """What a factorisation of each row takes: survivors cubed, summed over the rows, once where rows share a mask."""
    single, shared = _grouped(alive)
    first = torch.cat([single, *(rows[:1] for rows in shared)])
    return float(alive[first].sum(1).double().pow(3).sum())


def _solved(system: Tensor, right: Tensor, lift: float) -> Tensor:
    """The solutions for a batch; a diagonal that does not suffice for a factorisation is lifted more."""
    factor, found = _factor(system)
    while not found:
        more = max(lift, torch.finfo(system.dtype).eps * float(system.diagonal(dim1=1, dim2=2).amax())) * 100
        system = system + more * torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        lift += more
        factor, found = _factor(system)
    solved = _back(factor, right)
    for _ in range(_ROUNDS if lift else 0):
        solved = solved + _back(factor, right - system @ solved + lift * solved)
    return solved


def _factor(system: Tensor) -> tuple[Tensor, bool]:
    """The Cholesky factors of a batch, and whether there are any.

    By blocks of columns, since LAPACK takes the matrices of a batch one by one: 1.5 times as quick on one thread, and
    many times on several that others keep busy.
    """
    size, factor = system.shape[-1], system.clone()
    for start in range(0, size, _BLOCK):
        here = slice(start, min(start + _BLOCK, size))
        if start:
            factor[:, start:, here] -= factor[:, start:, :start] @ factor[:, here, :start].mT
        corner, info = torch.linalg.cholesky_ex(factor[:, here, here])
        if bool(info.any()):
            return factor, False
        factor[:, here, here] = corner
        if here.stop < size:
            below = factor[:, here.stop :, here]
            factor[:, here.stop :, here] = torch.linalg.solve_triangular(corner.mT, below, upper=True, left=False)
    return factor, True


def _back(factor: Tensor, right: Tensor) -> Tensor:
    """The solutions by a factor, of which the upper triangle is not read."""
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved


def _grouped(alive: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The rows with a mask of their own, and those that share one with others; rows without survivors are left out."""
    count = alive.sum(1)
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**62), 2**62, (alive.shape[1],), generator=generator).to(alive.device)
    keys = torch.stack([(piece * words).sum() for piece in alive])  # equal sums of 63 random bits a place: equal masks
    _, group, sizes = keys.unique(return_inverse=True, return_counts=True)
    together = (sizes[group] > 1) & (count > _SHARED)
    order = group.masked_fill(~together, -1).argsort(stable=True)
    own = int((~together).sum())
    shared = order[own:].split(sizes[group[order[own:]].unique_consecutive()].tolist()) if own < len(order) else ()
    return (~together & (count > 0)).nonzero()[:, 0], list(shared)


def _batches(rows: Tensor, alive: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows of about as many survivors, the places of these, and which of the places are no padding."""
    count, order = alive[rows].sum(1).sort(descending=True, stable=True)
    rows, sizes, start = rows[order], count.tolist(), 0
    room = _PIECE.get(alive.device.type, 1 << 24)
    while start < len(sizes):
        most = sizes[start]
        end = min(len(sizes), start + max(1, room // (8 * most * most)))
        while sizes[end - 1] * _WASTE + 4 < most:
            end -= 1
        part = rows[start:end]
        at = alive[part].byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        yield part, at, alive[part].gather(1, at)
        start = end
