"""The inverse of an information matrix, by one who knows how exactly it was computed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from prunewald.uncertainty.diagnosis import BlockDiagnosis

Inverse = Literal["inverse", "pseudo", "damped"]
_DOUBLE = torch.finfo(torch.float64).eps
_LEAST = 32  # a model rounds its derivatives several times, however few parameters it has


class Root:
    """A triangular R with R'R the sum of the outer products of rows that are read and let go.

    That sum itself has the square of R's condition, so that an inverse made of it loses twice as many digits.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._rows = [torch.zeros(0, size, dtype=torch.float64, device=device)]

    def add(self, rows: Tensor) -> None:
        """Take in more rows; they are kept until they are as many as a decomposition is worth."""
        self._rows.append(rows)
        if sum(map(len, self._rows)) > 2 * rows.shape[1] + _LEAST:
            self._rows = [self.value()]

    def value(self) -> Tensor:
        """R: as many rows as there are columns, or as there were rows if these are fewer."""
        found: Tensor = torch.linalg.qr(torch.cat(self._rows), mode="r").R
        return found


class Factors(NamedTuple):
    """A symmetric matrix as `columns` diag(`weights`) `columns`'."""

    columns: Tensor
    weights: Tensor

    def diagonal(self) -> Tensor:
        """The diagonal alone."""
        return self.columns.square() @ self.weights

    def whole(self) -> Tensor:
        """All of it."""
        return (self.columns * self.weights) @ self.columns.T


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of an information matrix that was scaled to a unit diagonal, and which of them are rounding."""

    values: Tensor
    vectors: Tensor
    scale: Tensor  # the root of the diagonal
    keep: Tensor
    root: Tensor | None = None  # its own square root, where that is known better: root' root is the scaled matrix

    @property
    def rank(self) -> int:
        """How many eigenvalues are more than rounding."""
        return int(self.keep.sum())

    @property
    def condition(self) -> float:
        """The largest eigenvalue over the smallest; infinite where that is rounding."""
        size = self.values.abs()
        return float(size.max() / size.min()) if len(size) and bool(self.keep.all()) else torch.inf

    def inverted(self, how: Inverse, damping: float = 0.0) -> Factors:
        """The inverse that was asked for, in the units of the parameters; NaN where there is none.

        The pseudo-inverse is that of the matrix before it was scaled. Damping adds to each entry of the diagonal a
        share of itself, so that no parameter depends on the units of another.
        """
        columns = self.vectors / self.scale[:, None]
        if how == "damped":
            return Factors(columns, 1 / (self.values + damping))
        if bool(self.keep.all()):
            return Factors(columns, 1 / self.values) if self.root is None else self._by(self.root)
        if how == "inverse":
            return Factors(columns, torch.full_like(self.values, torch.nan))
        unknown, _ = torch.linalg.qr(columns[:, ~self.keep])
        known = columns[:, self.keep]
        return Factors(known - unknown @ (unknown.T @ known), 1 / self.values[self.keep])

    def _by(self, root: Tensor) -> Factors:
        """The inverse by the root, whose condition is the root of the matrix's own."""
        triangle = torch.linalg.qr(root, mode="r").R
        columns = torch.linalg.solve_triangular(
            triangle, torch.eye(len(triangle), dtype=triangle.dtype, device=triangle.device), upper=True
        )
        return Factors(columns / self.scale[:, None], torch.ones_like(self.scale))


@dataclass(frozen=True)
class BlockMatrices:
    """One block of parameters: its information, the covariance of its scores, and what they were made from."""

    names: tuple[str, ...]
    information: Tensor  # the mean over samples, squared errors in units of their variance
    scores: Tensor  # a root of their covariance, in the same units: scores' scores
    mean: Tensor  # of the scores
    bend: Tensor | None  # the part of the information that is no sum of outer products, of an observed one
    samples: int
    eps: float  # the rounding of the derivatives that the information was made of
    root: Tensor | None = None  # of the information, where that is a sum of outer products: root' root

    @cached_property
    def covariance(self) -> Tensor:
        """That of the scores."""
        return self.scores.T @ self.scores

    @cached_property
    def told(self) -> Tensor:
        """True for the parameters that the data tell something of."""
        return self.information.any(1)

    @cached_property
    def spectrum(self) -> Spectrum:
        """The information about the parameters that the data tell something of, scaled to a unit diagonal."""
        matrix = self.of_told(self.information)
        if not bool(matrix.isfinite().all()):
            raise ValueError(
                f"the information about {', '.join(self.names)} has NaN or infinite entries: so have the derivatives "
                "of the loss at these batches; look for NaN in inputs, targets and outputs"
            )
        scale = _scale(matrix)
        values, vectors = torch.linalg.eigh(matrix / scale / scale[:, None])
        keep = values.abs() > self._rounding(values, max(len(values), _LEAST))
        return Spectrum(values, vectors, scale, keep, None if self.root is None else self.root[:, self.told] / scale)

    def _rounding(self, values: Tensor, size: int) -> float:
        """The eigenvalue, of the scaled information, below which there is nothing but rounding.

        A singular value of a matrix of derivatives is more than that from size times their own rounding on, and an
        eigenvalue of the sum of their outer products is its square. What is added to that sum has the rounding of the
        derivatives themselves. Neither is better than the double precision in which they are added up.
        """
        largest = float(values.abs().max()) if len(values) else 0.0
        outer = max((size * self.eps) ** 2, size * _DOUBLE) * largest
        return min(0.5 * largest, outer + size * self.eps * self._bent)

    @cached_property
    def _bent(self) -> float:
        """How much of the scaled information is no sum of outer products."""
        if self.bend is None or not bool(self.bend.any()):
            return 0.0
        scale = _scale(self.information)
        return float(torch.linalg.matrix_norm(self.bend / scale / scale[:, None]))

    @property
    def error(self) -> float:
        """About how far off, relatively, rounding lets the standard errors be."""
        condition = self.spectrum.condition
        if condition == torch.inf:
            return torch.inf
        parts = self.eps * (condition**0.5 + self._bent / float(self.spectrum.values.abs().min()))
        return float(parts + _DOUBLE * condition)

    def of_told(self, matrix: Tensor) -> Tensor:
        """The rows and columns of a matrix for the parameters that the data tell something of."""
        return matrix if bool(self.told.all()) else matrix[self.told][:, self.told]

    def full(self, variance: Tensor) -> Tensor:
        """Variances of all parameters from those of the parameters that are told of; infinite for the others."""
        # The data say nothing of a parameter without information: a pseudo-inverse would call it certain.
        found = torch.full_like(self.mean, torch.inf)
        found[self.told] = variance
        return found

    def z(self) -> Tensor:
        """The mean scores in units of their standard errors, where a score varies."""
        error = (self.scores.square().sum(0) / self.samples).sqrt()
        return (self.mean / error)[error > 0]

    def diagnosed(self, variance: Tensor) -> BlockDiagnosis:
        """How far this block can be believed: its rank and condition, negative variances, the mean score."""
        z = self.z()
        return BlockDiagnosis(
            params=self.names,
            size=len(variance),
            rank=self.spectrum.rank,
            condition=self.spectrum.condition,
            negative=int((variance < 0).sum()),
            score=float(z.square().mean().sqrt()) if len(z) else 0.0,
            untold=int((~self.told).sum()),
            error=self.error,
        )


def _scale(matrix: Tensor) -> Tensor:
    """What rows and columns are divided by so that the diagonal is one, or minus one; where it is zero, one."""
    root = matrix.diagonal().abs().sqrt()
    return torch.where(root > 0, root, 1.0)
