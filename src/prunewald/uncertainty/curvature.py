"""Scores, Fisher information and Hessian of a model's likelihood, from per-sample derivatives (torch.func)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, vmap
from torch.nn import functional as F

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
Loss: TypeAlias = str | Callable[..., Tensor] | nn.Module

_NAMES = {
    "cross_entropy": (F.cross_entropy, nn.CrossEntropyLoss),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    "squared_error": (F.mse_loss, nn.MSELoss),
}


def likelihood(loss: Loss) -> str:
    """Which likelihood a loss stands for; an error for a loss whose likelihood is not known."""
    for name, (function, module) in _NAMES.items():
        if isinstance(loss, module):
            _check_plain(loss)
        if loss == name or loss is function or isinstance(loss, module):
            return name
    raise ValueError(f"loss {loss!r}: analytic standard errors are known for {', '.join(_NAMES)}")


def _check_plain(loss: Any) -> None:
    """A weighted or smoothed loss is no likelihood of the data."""
    changed = [key for key in ("weight", "pos_weight") if getattr(loss, key, None) is not None]
    changed += ["label_smoothing"] if getattr(loss, "label_smoothing", 0) else []
    changed += ["reduction"] if getattr(loss, "reduction", "mean") != "mean" else []
    if changed:
        raise ValueError(f"loss {loss!r} with {', '.join(changed)} is not a plain likelihood: use its defaults")


def negative_log_likelihood(kind: str, output: Tensor, target: Tensor) -> Tensor:
    """Of one sample, up to a constant; squared errors in units of their variance."""
    if kind == "cross_entropy":
        if output.dim() != 1 or target.dim():
            raise ValueError(
                f"cross entropy of outputs {tuple(output.shape)} and labels {tuple(target.shape)} a sample: give one "
                "label and a row of classes, with positions laid out as samples"
            )
        return F.cross_entropy(output[None], target[None])
    if kind == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(
            output, target.to(output.dtype).reshape(output.shape), reduction="sum"
        )
    return 0.5 * (output - target.reshape(output.shape)).square().sum()


def output_factor(kind: str, output: Tensor) -> Tensor:
    """A, with A A' the Fisher information that one sample has about the outputs of the model."""
    if kind == "cross_entropy":
        p = output.softmax(-1)
        return torch.diag(p.sqrt()) - p[:, None] * p.sqrt()[None, :]
    if kind == "binary_cross_entropy":
        p = output.reshape(-1).sigmoid()
        return torch.diag((p * (1 - p)).sqrt())
    return torch.eye(output.numel(), dtype=output.dtype, device=output.device)


@dataclass(frozen=True)
class Problem:
    """A model, its free parameters laid end to end, its data and its likelihood."""

    model: nn.Module
    batches: Batches
    kind: str
    chunk: int = 64  # samples differentiated at a time

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters that take gradients, by name."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def samples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The data in pieces of at most `chunk` samples."""
        for x, y in self.batches:
            yield from zip(x.split(self.chunk), y.split(self.chunk), strict=True)

    def scores(self) -> Iterator[Tensor]:
        """The derivative of each sample's log-likelihood, a row a sample."""
        params = self.params

        def one(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return -negative_log_likelihood(self.kind, self.output(p, x), y)

        for x, y in self.samples():
            yield _rows(vmap(grad(one), in_dims=(None, 0, 0))(params, x, y))

    def factors(self) -> Iterator[Tensor]:
        """Rows whose outer products add up to the expected Fisher information, one an output and sample."""
        params = self.params

        def one(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
            output = self.output(p, x).reshape(-1)
            return output_factor(self.kind, output.detach()).T @ output

        for x, _ in self.samples():
            yield _rows(vmap(jacrev(one), in_dims=(None, 0))(params, x), lead=2)

    def hessians(self) -> Iterator[Tensor]:
        """The Hessian of the negative log-likelihood, summed over the samples of one piece."""
        names, sizes, shapes = zip(*((n, p.numel(), p.shape) for n, p in self.params.items()), strict=True)
        flat = torch.cat([p.reshape(-1) for p in self.params.values()])

        def total(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
            cut = zip(names, vector.split(sizes), shapes, strict=True)
            params = {name: part.view(shape) for name, part, shape in cut}
            return vmap(lambda a, b: negative_log_likelihood(self.kind, self.output(params, a), b))(x, y).sum()

        for x, y in self.samples():
            yield hessian(total)(flat, x, y)

    def zeros(self, size: int, vector: bool = False) -> Tensor:
        """Where derivatives are added up: in double precision, on the device of the model."""
        device = next(iter(self.params.values())).device
        return torch.zeros(size if vector else (size, size), dtype=torch.float64, device=device)

    def dispersion(self, count: int) -> float:
        """The variance of the residuals of a squared-error model, by n - p while there are more samples; else 1.

        NaN for several outputs, whose variances may differ: no standard error rather than a wrong one.
        """
        if self.kind != "squared_error":
            return 1.0
        if self.outputs > 1:
            return math.nan
        with torch.no_grad():
            outputs = ((self.model(x), y) for x, y in self.samples())
            total = sum(float((f - y.reshape(f.shape)).double().square().sum()) for f, y in outputs)
        free = count * self.outputs
        size = sum(p.numel() for p in self.params.values())
        return total / (free - size if free > size else free)

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for a sample."""
        x, _ = next(self.samples())
        with torch.no_grad():
            return int(self.model(x[:1]).numel())

    @property
    def gain(self) -> float:
        """The loss as torch takes it, with its means over outputs, in units of the negative log-likelihood."""
        return {"cross_entropy": 1.0, "binary_cross_entropy": 1.0 / self.outputs, "squared_error": 2.0 / self.outputs}[
            self.kind
        ]

    def output(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What the model gives for one sample."""
        output: Tensor = functional_call(self.model, dict(params), (x[None],))
        return output[0]


def _rows(tree: Mapping[str, Tensor], lead: int = 1) -> Tensor:
    """Per-sample derivatives as one matrix, a parameter a column."""
    return torch.cat([t.reshape(t.shape[:lead].numel(), -1) for t in tree.values()], dim=1).double()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """No dropout and no running statistics meanwhile."""
    modes: list[tuple[nn.Module, Any]] = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
