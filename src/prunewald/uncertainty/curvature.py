"""Scores, Fisher information and Hessian of a model's likelihood, summed over data that are read and let go."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from prunewald.model.masking import Masks, living
from prunewald.uncertainty.batches import Batches, Inputs, Samples
from prunewald.uncertainty.derivatives import Derivatives
from prunewald.uncertainty.information import Root
from prunewald.uncertainty.likelihood import (
    Loss,
    gain,
    likelihood,
    negative_log_likelihood,
    output_factor,
    output_slope,
)

_ROWS = 1024  # outputs of samples differentiated at a time
_CHUNK = 64  # samples differentiated at a time,
_MOST = 1 << 26  # but no more than this many derivatives


def pose(
    model: nn.Module,
    batches: Batches,
    loss: Loss | None,
    masks: Masks | None,
    *,
    passes: int | None = None,
    double: bool = False,
    limit: int | None = None,
    progress: bool = False,
) -> "Problem":
    """The problem of a model: its free parameters, and the samples that its loss counts.

    `passes` is how often the data will be gone through; None: several times. With `double` a copy of the model computes
    in double precision, where it can. Without a loss it is the model's own.
    """
    if loss is not None:
        likelihood(loss)
    alive = {n: a for n, a in living(model, masks).items() if model.get_parameter(n).requires_grad}
    if not alive:
        raise ValueError(
            f"no parameter of {type(model).__name__} requires gradients: set requires_grad where one should"
        )
    if not any(bool(a.any()) for a in alive.values()):
        raise ValueError(f"masks leaves nothing of {', '.join(alive)} alive: a weight is alive where its mask is True")
    samples = Samples(batches, model, loss, passes=passes, limit=limit, progress=progress)
    chunk = max(1, min(_CHUNK, _MOST // sum(map(Tensor.numel, alive.values()))))
    derivatives = Derivatives(model, double)
    return Problem(model, samples, samples.kind, alive, torch.ones((), device="cpu"), derivatives, chunk)


class Means(NamedTuple):
    """What one pass over the data finds for some parameters, as means over samples in double precision."""

    root: Tensor  # of the expected information: root' root
    bend: Tensor | None  # what the Hessian has beyond it, by the curvature of the model itself, where it was asked for
    scores: Tensor  # a root of their covariance about zero: scores' scores
    score: Tensor


@dataclass(frozen=True)
class Problem:
    """A model, its free parameters laid end to end, its data and its likelihood."""

    model: nn.Module
    batches: Samples
    kind: str
    alive: Mapping[str, Tensor]  # by name of the parameters that take gradients, True where a weight is free
    precision: Tensor  # of each squared output, relative to the others
    derivatives: Derivatives
    chunk: int = _CHUNK  # samples differentiated at a time
    columns: int = 256  # of a Hessian at a time: each holds the derivatives of all that the model computes

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters that take gradients, by name."""
        return {name: self.model.get_parameter(name).detach() for name in self.alive}

    @property
    def count(self) -> int:
        """How many samples there are."""
        return self.batches.count

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for a sample."""
        with torch.no_grad():
            return self.derivatives.output(self.derivatives.fitted(self.batches.first)).numel()

    @property
    def gain(self) -> float:
        """The loss as torch takes it, with its means over outputs, in units of the negative log-likelihood."""
        return gain(self.kind, self.outputs)

    def degrees(self, untold: int = 0) -> float | None:
        """The degrees of freedom of a residual variance, n - p / outputs; None where it has none.

        p is the number of living parameters, without those that the data tell nothing of.
        """
        if self.kind != "squared_error":
            return None
        free = sum(int(alive.sum()) for alive in self.alive.values()) - untold
        left = self.count - free / self.outputs
        return left if left > 0 else None

    @property
    def eps(self) -> float:
        """The relative rounding of the numbers that a derivative is made of: that of the coarsest parameter.

        A copy in double computes better than that; but its weights and inputs were rounded before.
        """
        return max(torch.finfo(p.dtype).eps for p in self.model.parameters() if p.is_floating_point())

    def samples(self) -> Iterator[tuple[Inputs, Tensor]]:
        """The data from their beginning, in pieces of at most `chunk` samples."""
        for x, y in self.batches:
            yield from zip(self.derivatives.fitted(x).split(self.chunk), y.split(self.chunk), strict=True)

    def means(self, names: Sequence[str], observed: bool) -> Means:
        """Information, scores and their covariance for the living entries of some parameters, in one pass."""
        alive = torch.cat([self.alive[name].reshape(-1) for name in names]).nonzero()[:, 0]
        size, device = len(alive), alive.device
        root, scores = Root(size, device), Root(size, device)
        score = torch.zeros_like(alive, dtype=torch.float64)
        bend = torch.zeros(size, size, dtype=torch.float64, device=device) if observed else None
        for x, y in self.samples():
            rows = -_rows(self.gradients(names, x, y), lead=1)[:, alive]
            scores.add(rows)
            score += rows.sum(0)
            for factors in self.factors(names, x, y):
                root.add(_rows(factors, lead=2)[:, alive])
            if bend is not None:
                for part, at in zip(bend.split(self.columns), alive.split(self.columns), strict=True):
                    part += self.derivatives.hessian(self._residual, names, at, x, y)[:, alive]
        n = self.count
        return Means(root.value() / n**0.5, None if bend is None else bend / n, scores.value() / n**0.5, score / n)

    def gradients(self, names: Sequence[str], x: Inputs, y: Tensor) -> dict[str, Tensor]:
        """The gradient of each sample's negative log-likelihood, by parameter."""
        found = self.derivatives.jacobian(self._loss, names, x, y)
        return {name: value[:, 0] for name, value in found.items()}

    def factors(self, names: Sequence[str], x: Inputs, y: Tensor, most: int = _ROWS) -> Iterator[dict[str, Tensor]]:
        """By parameter, rows for each sample whose outer products add up to its expected Fisher information.

        Those of a softmax are the gradients at each label, times the root of the probability that the model gives it.
        There is a row for each output of a sample, and they come about `most` rows at a time.
        """

        def head(output: Tensor, target: Tensor) -> Tensor:
            return output_factor(self.kind, output.detach(), self.precision).T @ output.reshape(-1)

        size = max(1, most // self.outputs)
        for piece in zip(x.split(size), y.split(size), strict=True):
            yield self.derivatives.jacobian(head, names, *piece)

    def balanced(self) -> tuple["Problem", float]:
        """This problem with every squared output in units of its own variance, and the mean of these variances.

        The variance of an output is its sum of squared residuals over its degrees of freedom, all living parameters
        taken as estimated, or over n where there are too few samples for that. Other likelihoods stay as they are,
        with 1.
        """
        if self.kind != "squared_error":
            return self, 1.0
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        with torch.no_grad():
            for x, y in self.samples():
                output = self.derivatives.output(x)
                residuals = (output.double() - y.reshape(output.shape)).reshape(len(x), -1)
                total = total + residuals.square().sum(0)
        variance = total / (self.degrees() or self.count)
        # An output without residuals tells no variance of its own: it counts with the mean of the others.
        precision = torch.where(variance > 0, variance.mean() / variance, 1.0)
        return replace(self, precision=precision), float(variance.mean())

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood of one sample, as a vector of one number, in double precision."""
        last = self.batches.classes_last
        return negative_log_likelihood(self.kind, output.double(), target, self.precision, last=last).reshape(1)

    def _residual(self, output: Tensor, target: Tensor) -> Tensor:
        """The outputs, each times the gradient of the loss by it, taken as a constant."""
        slope = output_slope(self.kind, output.detach().double(), target, self.precision)
        return (slope * output.reshape(-1).double()).sum().reshape(1)


def _rows(tree: Mapping[str, Tensor], lead: int) -> Tensor:
    """Per-sample derivatives as one matrix in double precision, with a column for each entry of the parameters."""
    return torch.cat([t.reshape(t.shape[:lead].numel(), -1) for t in tree.values()], dim=1).double()
