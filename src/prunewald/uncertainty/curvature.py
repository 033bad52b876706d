"""Scores, Fisher information and Hessian of a model's likelihood, from per-sample derivatives (torch.func)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.nn import functional as F

from prunewald.model.masking import Masks, living
from prunewald.uncertainty.batches import Batches, Samples
from prunewald.uncertainty.likelihood import Loss, likelihood, negative_log_likelihood, output_factor

_ROWS = 1024  # outputs of samples differentiated at a time


def pose(
    model: nn.Module, batches: Batches, loss: Loss, masks: Masks | None, *, passes: int | None = None
) -> "Problem":
    """The problem of a model: its free parameters, and the samples that its loss counts.

    `passes` is how often the data will be gone through; None: several times.
    """
    kind = likelihood(loss)
    alive = {n: a for n, a in living(model, masks).items() if model.get_parameter(n).requires_grad}
    if not alive:
        raise ValueError(
            f"no parameter of {type(model).__name__} requires gradients: set requires_grad where one should"
        )
    if not any(bool(a.any()) for a in alive.values()):
        raise ValueError(f"masks leaves nothing of {', '.join(alive)} alive: a weight is alive where its mask is True")
    return Problem(model, Samples(batches, loss, passes=passes), kind, alive, torch.ones((), device="cpu"))


@dataclass(frozen=True)
class Problem:
    """A model, its free parameters laid end to end, its data and its likelihood."""

    model: nn.Module
    batches: Samples
    kind: str
    alive: Mapping[str, Tensor]  # by name of the parameters that take gradients, True where a weight is free
    precision: Tensor  # of each squared output, relative to the others
    chunk: int = 64  # samples differentiated at a time
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
            return int(self.model(self.batches.first).numel())

    @property
    def gain(self) -> float:
        """The loss as torch takes it, with its means over outputs, in units of the negative log-likelihood."""
        return {"cross_entropy": 1.0, "binary_cross_entropy": 1.0 / self.outputs, "squared_error": 2.0 / self.outputs}[
            self.kind
        ]

    def samples(self, limit: int = _ROWS) -> Iterator[tuple[Tensor, Tensor]]:
        """The data in pieces of at most `chunk` samples."""
        size = max(1, min(self.chunk, limit))
        for x, y in self.batches:
            yield from zip(x.split(size), y.split(size), strict=True)

    def scores(self, names: Sequence[str]) -> Iterator[Tensor]:
        """The derivative of each sample's log-likelihood by the living entries of some parameters, one row a sample."""
        block, alive = self._block(names)
        for x, y in self.samples():
            yield -_rows(vmap(grad(self.loss), in_dims=(None, 0, 0))(block, x, y))[:, alive]

    def information(self, names: Sequence[str]) -> Tensor:
        """The expected Fisher information about the living entries of some parameters, summed over the samples."""
        block, alive = self._block(names)

        def one(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
            output = self.output(p, x).reshape(-1)
            return output_factor(self.kind, output.detach(), self.precision).T @ output

        matrix = _zeros(alive)
        for x, _ in self.samples(_ROWS // self.outputs):
            rows = _rows(vmap(jacrev(one), in_dims=(None, 0))(block, x), lead=2)[:, alive]
            matrix += rows.T @ rows
        return matrix

    def hessian(self, names: Sequence[str]) -> Tensor:
        """The Hessian of the negative log-likelihood in the living entries of some parameters, summed over samples."""
        block, alive = self._block(names)
        sizes, shapes = [p.numel() for p in block.values()], [p.shape for p in block.values()]
        point = torch.cat([p.reshape(-1) for p in block.values()])

        def total(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
            cut = zip(names, vector.split(sizes), shapes, strict=True)
            params = {name: part.view(shape) for name, part, shape in cut}
            return vmap(lambda a, b: self.loss(params, a, b))(x, y).sum()

        def column(direction: Tensor, x: Tensor, y: Tensor) -> Tensor:
            derivative: Tensor = jvp(lambda vector: grad(total)(vector, x, y), (point,), (direction,))[1]
            return derivative

        matrix = _zeros(alive)
        for x, y in self.samples():
            for piece, at in zip(matrix.split(self.columns), alive.split(self.columns), strict=True):
                directions = F.one_hot(at, len(point)).to(point)
                piece += vmap(column, in_dims=(0, None, None))(directions, x, y)[:, alive]
        return matrix

    def balanced(self) -> tuple["Problem", float]:
        """This problem with every squared output in units of its own variance, and the mean of these variances.

        The variance of an output is its sum of squared residuals over n - p / outputs, p the number of living
        parameters (over n where there are too few samples for that). Other likelihoods stay as they are, with 1.
        """
        if self.kind != "squared_error":
            return self, 1.0
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        with torch.no_grad():
            for x, y in self.samples():
                output = self.model(x)
                residuals = (output - y.reshape(output.shape)).reshape(len(x), -1)
                total = total + residuals.double().square().sum(0)
        free = self.count - sum(int(a.sum()) for a in self.alive.values()) / len(total)
        variance = total / (free if free > 0 else self.count)
        # An output without residuals tells no variance of its own: it counts with the mean of the others.
        precision = torch.where(variance > 0, variance.mean() / variance, 1.0)
        return replace(self, precision=precision), float(variance.mean())

    def loss(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The negative log-likelihood of one sample, with some parameters given."""
        return negative_log_likelihood(self.kind, self.output(params, x), y, self.precision)

    def output(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What the model gives for one sample, with some parameters given."""
        output: Tensor = functional_call(self.model, {**self.params, **params}, (x[None],))
        return output[0]

    def _block(self, names: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Some of the parameters, and where their living entries are when they are laid end to end."""
        alive = torch.cat([self.alive[name].reshape(-1) for name in names])
        params = self.params
        return {name: params[name] for name in names}, alive.nonzero()[:, 0]


def _zeros(alive: Tensor) -> Tensor:
    """Where derivatives are added up: in double precision, on the device of the model."""
    return torch.zeros(len(alive), len(alive), dtype=torch.float64, device=alive.device)


def _rows(tree: Mapping[str, Tensor], lead: int = 1) -> Tensor:
    """Per-sample derivatives as one matrix, with a column for each entry of the parameters."""
    return torch.cat([t.reshape(t.shape[:lead].numel(), -1) for t in tree.values()], dim=1).double()
