"""The likelihood that a loss stands for: its value, and the information one sample has about the model's outputs."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss: TypeAlias = str | Callable[..., Tensor] | nn.Module

_NAMES: dict[str, tuple[Any, type[nn.Module]]] = {
    "cross_entropy": (F.cross_entropy, nn.CrossEntropyLoss),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss),
    "squared_error": (F.mse_loss, nn.MSELoss),
    "poisson": (F.poisson_nll_loss, nn.PoissonNLLLoss),
}
# With these settings a loss is the likelihood of its name; most losses have only some of them.
_PLAIN = {"weight": None, "pos_weight": None, "label_smoothing": 0, "log_input": True}
_POSITIONS = "cross entropy of {} a sample: give one label and a row of classes, with positions laid out as samples"


def likelihood(loss: Loss, reductions: tuple[str, ...] = ("mean",)) -> str:
    """Which likelihood a loss stands for; an error for a loss whose likelihood is not known.

    A subclass of a known loss may compute anything: by its name a caller says which likelihood it stands for.
    `reductions` are those that a loss may have.
    """
    for name, (function, module) in _NAMES.items():
        if loss == name or loss is function:
            return name
        if type(loss) is module:
            _check_plain(loss, reductions)
            return name
        if isinstance(loss, module):
            raise ValueError(
                f"loss {loss!r} is a {module.__name__} that may compute something else: where it is that "
                f"likelihood, give loss={name!r}"
            )
    raise ValueError(f"loss {loss!r}: likelihoods are known for {', '.join(_NAMES)}")


def as_function(loss: Loss) -> Callable[..., Tensor]:
    """A loss as a function of outputs and targets: one that was named, or as it is."""
    return _NAMES[likelihood(loss)][0] if isinstance(loss, str) else loss


def _check_plain(loss: nn.Module, reductions: tuple[str, ...]) -> None:
    """Refuse a weighted or smoothed loss, which is no likelihood of the data."""
    found = {key: getattr(loss, key, plain) for key, plain in _PLAIN.items()}
    changed = [key for key, plain in _PLAIN.items() if found[key] is not plain and found[key] != plain]
    if getattr(loss, "reduction", reductions[0]) not in reductions:
        changed.append("reduction")
    if changed:
        raise ValueError(f"loss {loss!r} with {', '.join(changed)} is not a plain likelihood: use its defaults")


def gain(kind: str, averaged: int) -> float:
    """The gradient of a sample's part of torch's loss, in units of its negative log-likelihood of variance one.

    `averaged` is over how many outputs of a sample the loss takes the mean; cross entropy over none, and a squared
    error is twice the negative log-likelihood.
    """
    return {"cross_entropy": 1.0, "squared_error": 2.0 / averaged}.get(kind, 1.0 / averaged)


def counted(x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The samples that the loss counts: cross entropy leaves out those whose label is its `ignore_index`."""
    if likelihood(loss) != "cross_entropy" or y.dim() != 1:
        return x, y
    keep = y != getattr(loss, "ignore_index", -100)
    return (x, y) if bool(keep.all()) else (x[keep], y[keep])


def negative_log_likelihood(kind: str, output: Tensor, target: Tensor, precision: Tensor) -> Tensor:
    """The negative log-likelihood of one sample, up to a constant; `precision` is that of each squared output."""
    if kind == "cross_entropy":
        if output.dim() != 1 or target.dim():
            raise ValueError(_POSITIONS.format(f"outputs {tuple(output.shape)} and labels {tuple(target.shape)}"))
        return F.cross_entropy(output[None], target[None])
    if kind == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(
            output, target.to(output.dtype).reshape(output.shape), reduction="sum"
        )
    if kind == "poisson":
        return (output.exp() - target.to(output.dtype).reshape(output.shape) * output).sum()
    return 0.5 * (precision.to(output) * (output - target.reshape(output.shape)).reshape(-1).square()).sum()


def output_slope(kind: str, output: Tensor, target: Tensor, precision: Tensor) -> Tensor:
    """The gradient of one sample's negative log-likelihood by the outputs: what is expected less what was observed.

    The outputs of all four likelihoods are natural parameters, so that the second derivatives by the outputs do not
    depend on what was observed, and are the expected information.
    """
    if kind == "cross_entropy":
        return output.softmax(-1) - F.one_hot(target, output.numel())
    flat, observed = output.reshape(-1), target.reshape(-1)
    if kind == "squared_error":
        return precision.to(flat) * (flat - observed)
    return (flat.exp() if kind == "poisson" else flat.sigmoid()) - observed


def output_factor(kind: str, output: Tensor, precision: Tensor) -> Tensor:
    """A matrix A such that A A' is the Fisher information that one sample has about the outputs of the model."""
    exact = output.reshape(-1).double()  # one minus a probability loses digits
    if kind == "cross_entropy":
        if output.dim() != 1:
            raise ValueError(_POSITIONS.format(f"outputs {tuple(output.shape)}"))
        p = exact.softmax(-1)
        factor = torch.diag(p.sqrt()) - p[:, None] * p.sqrt()[None, :]
    elif kind == "binary_cross_entropy":
        factor = torch.diag((exact.sigmoid() * (-exact).sigmoid()).sqrt())
    elif kind == "poisson":
        factor = torch.diag((exact / 2).exp())
    else:
        factor = torch.diag(precision.to(exact).sqrt().expand(exact.numel()))
    return factor.to(output)
