"""Least squares under a mask, row by row: a Cholesky factorisation of what is left of the Gram matrix."""

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 1 << 26  # bytes of submatrices that are factored at a time
_SHARED = 32  # rows with one mask of fewer survivors are not looked for: a factorisation each is as quick
_WASTE = 1.1  # rows are factored together whose survivors differ by no more than this
_ROUNDS = 2  # after which a lift of the diagonal has gone from every direction but those without information


def by_rows(inputs: Tensor, residual: Tensor, alive: Tensor, ridge: float, lift: float) -> Tensor:
    """The change d of each row, zero where not `alive`, that solves (inputs + ridge) d = residual over the others.

    With `lift`, which is added to the diagonal so that the factorisation exists, and taken from the solution again by
    repeating, directions of no information get no change.
    """
    change = torch.zeros_like(residual)
    system = inputs + (ridge + lift) * torch.eye(len(inputs), dtype=inputs.dtype, device=inputs.device)
    single, shared = _grouped(alive)
    for rows in shared:
        at = alive[rows[0]].nonzero()[:, 0]
        solved = _solved(system[at][:, at], residual[rows][:, at].T, lift)
        change[rows[:, None], at] = solved.T
    for rows, at, valid in _batches(single, alive):
        parts = system[at.unsqueeze(2), at.unsqueeze(1)]
        parts *= valid.unsqueeze(2) & valid.unsqueeze(1)
        parts.diagonal(dim1=1, dim2=2)[~valid] = 1.0
        right = residual[rows].gather(1, at) * valid
        solved = _solved(parts, right.unsqueeze(2), lift).squeeze(2)
        change[rows] = change[rows].scatter(1, at, solved * valid)
    return change


def cost(alive: Tensor) -> float:
    """Survivors cubed over the rows; once where rows share a mask."""
    single, shared = _grouped(alive)
    first = torch.cat([single, *(rows[:1] for rows in shared)])
    return float(alive[first].sum(1).double().pow(3).sum())


def _solved(system: Tensor, right: Tensor, lift: float) -> Tensor:
    """The solution for one matrix or a batch; a diagonal that does not suffice for a factorisation is lifted more."""
    factor, info = torch.linalg.cholesky_ex(system)
    while bool(info.any()):
        more = max(lift, torch.finfo(system.dtype).eps * float(system.diagonal(dim1=-2, dim2=-1).amax())) * 100
        system = system + more * torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
        lift += more
        factor, info = torch.linalg.cholesky_ex(system)
    solved = torch.cholesky_solve(right, factor)
    for _ in range(_ROUNDS if lift else 0):
        solved = solved + torch.cholesky_solve(right - system @ solved + lift * solved, factor)
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
    count = alive[rows].sum(1)
    count, order = count.sort(descending=True, stable=True)
    rows, sizes, start = rows[order], count.tolist(), 0
    while start < len(sizes):
        most = sizes[start]
        end = min(len(sizes), start + max(1, PIECE // (8 * most * most)))
        while sizes[end - 1] * _WASTE + 4 < most:
            end -= 1
        part = rows[start:end]
        at = alive[part].byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        yield part, at, alive[part].gather(1, at)
        start = end
