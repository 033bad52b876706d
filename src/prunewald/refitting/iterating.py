"""Least squares under a mask, all rows at once: conjugate gradients, whose every step is one product of matrices.

A step takes rows · d² multiplications whatever the masks are. The Gram matrix is preconditioned as what a factor model
says of it: a few factors that the inputs share, and of each input what is its own. Of those, what a mask leaves can be
inverted for each row at the price of a few steps, and some ten steps are then enough where the diagonal alone takes 60;
so does the iteration of Boza (2024), from the whole matrix plus a constant, but at twice the price a step.
"""

import torch
from torch import Tensor

SHARED = 64  # factors
_OWN = 1e-3  # of each input's square at least
_TOLERANCE = 0.01  # rows are done when the last steps took less than this share of their squared error, on average
_WINDOW = 3  # so many steps
_FLOOR = 1e-4  # a share of the error that a row had, below which no share of what is left is asked for
_MOST = 300  # steps
_TRUE = 0.99  # the share of what single precision says it gained that has to be true
_LOOKED = 8  # of so many rows one is looked at for that
_ROWS = 256  # so many rows of the Gram matrix, or of the layer, are prepared at a time


class Steps:
    """What all rows and all ridges share: a Gram matrix in units in which its diagonal is 1, and its factor model."""

    def __init__(self, inputs: Tensor):
        squares = inputs.diagonal()
        least = float(squares.mean()) * 1e-12  # below which an input is as good as always zero
        self.inputs = inputs
        self.scale = squares.clamp(min=max(least, 1e-300)).rsqrt()
        self.matrix = torch.empty_like(inputs, dtype=torch.float32)
        for start in range(0, len(inputs), _ROWS):
            rows = slice(start, start + _ROWS)
            self.matrix[rows] = self._scaled(rows)
        self.loadings, self.own = _factors(self.matrix)

    def _scaled(self, rows: slice = slice(None)) -> Tensor:
        return (self.inputs[rows] * self.scale).mul_(self.scale[rows].unsqueeze(1))

    def solved(
        self, residual: Tensor, alive: Tensor, ridge: float, before: Tensor, start: Tensor | None = None
    ) -> Tensor:
        """The change of each row, zero where not `alive`, that nearly solves (inputs + ridge) d = residual there.

        `before` is the squared error of each row without a change, which says what nearly is: within 1 % of the least
        that there is, as a rule. Steps begin at `start`. They are taken in single precision, and again in double where
        that proves not enough, be it for the matrix or since products are rounded to TF32 or bfloat16.
        """
        right, more = residual * self.scale * alive, ridge * self.scale.square()
        begin = None if start is None else start / self.scale * alive
        model = _Model(self.loadings, self.own + more.float(), alive)
        found, promised = _steps(self.matrix, more, right, model, before, begin)
        change = found * self.scale
        some = change[::_LOOKED]
        gained = (some * (2 * residual[::_LOOKED] - some @ self.inputs - ridge * some)).sum(1)
        if not bool((gained >= _TRUE * promised[::_LOOKED] - _FLOOR * before[::_LOOKED]).all()):  # or not a number
            model = _Model(self.loadings.double(), self.own.double() + more, alive)
            change = _steps(self._scaled(), more, right, model, before, begin)[0] * self.scale
        return change


class _Model:
    """A factor model of a Gram matrix, B B' + T with a diagonal T, and its inverse over what is alive of each row."""

    def __init__(self, loadings: Tensor, own: Tensor, alive: Tensor):
        self.loadings, self.alive = loadings, alive
        self.inverse = alive / own
        # B' T^-1 B over what is alive: for all rows one product, with the products of any two loadings.
        one, other = torch.tril_indices(loadings.shape[1], loadings.shape[1], device=own.device)
        pairs = loadings[:, one].mul_(loadings[:, other])
        self.inner = loadings.new_empty(len(alive), loadings.shape[1], loadings.shape[1])
        for start in range(0, len(alive), _ROWS):
            rows = slice(start, start + _ROWS)
            self.inner[rows] = _inverted(self.inverse[rows] @ pairs, one, other, loadings.shape[1])

    def solved(self, rest: Tensor) -> Tensor:
        """The inverse times something that is zero where a row is not alive."""
        scaled = rest * self.inverse
        shared = (scaled @ self.loadings).unsqueeze(1).bmm(self.inner).squeeze(1)
        return scaled.addcmul_(shared @ self.loadings.T, self.inverse, value=-1)


def _inverted(packed: Tensor, one: Tensor, other: Tensor, size: int) -> Tensor:
    """(B' T^-1 B + 1)^-1 for each row, from the lower triangles of B' T^-1 B."""
    inner = packed.new_zeros(len(packed), size, size, dtype=torch.float64)
    inner[:, one, other] = packed.double()
    inner.diagonal(dim1=1, dim2=2).add_(1.0)
    factor, info = torch.linalg.cholesky_ex(inner)  # reads the lower triangle
    found: Tensor = torch.cholesky_inverse(factor).to(packed.dtype)
    found[info > 0] = 0.0  # a row whose model is lost in rounding has the diagonal
    return found


def _factors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The loadings of the strongest factors, by subspace iteration, and what of the diagonal they do not explain."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(len(matrix), min(SHARED + 8, len(matrix)), generator=generator).to(matrix)
    for _ in range(4):
        basis = torch.linalg.qr(matrix @ basis).Q
    values, turn = torch.linalg.eigh(basis.T @ matrix @ basis)
    loadings = (basis @ turn * values.clamp(min=0).sqrt())[:, -SHARED:]
    return loadings, (matrix.diagonal() - loadings.square().sum(1)).clamp(min=_OWN)


def _steps(
    matrix: Tensor, more: Tensor, right: Tensor, model: _Model, before: Tensor, begin: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What the steps arrive at for some rows, and by how much they say that they lessened each one's squared error.

    In the precision of `matrix`, to whose diagonal comes `more`.
    """
    right, more, least = right.to(matrix.dtype), more.to(matrix.dtype), torch.finfo(matrix.dtype).tiny
    noise = 10 * torch.finfo(matrix.dtype).eps  # of a diagonal of 1
    found, rest = torch.zeros_like(right), right.clone()
    if begin is not None:
        found = begin.to(matrix.dtype)
        rest -= (found @ matrix).addcmul_(found, more).mul_(model.alive)
    gained = (found * (right + rest)).sum(1).double()
    turned = model.solved(rest)
    direction, power = turned.clone(), (rest * turned).sum(1)
    taken: list[Tensor] = []
    for _ in range(_MOST):
        product = (direction @ matrix).addcmul_(direction, more).mul_(model.alive)
        curve, rounding = (direction * product).sum(1), noise * direction.square().sum(1)
        step = torch.where(curve > rounding, power / curve, 0.0)  # none along what the inputs say nothing of
        found.addcmul_(step.unsqueeze(1), direction)
        rest.addcmul_(step.unsqueeze(1), product, value=-1)
        taken = [*taken[1 - _WINDOW :], (step * power).double()]
        gained += taken[-1]
        left = (before - gained).clamp(min=0) + _FLOOR * before
        if len(taken) == _WINDOW and float((torch.stack(taken).sum(0) / left.clamp(min=1e-300)).mean()) < _TOLERANCE:
            break
        turned = model.solved(rest)
        power, old = (rest * turned).sum(1), power
        direction.mul_((power / old.clamp(min=least)).unsqueeze(1)).add_(turned)
    return found.double(), gained
