"""The likelihood that a loss stands for: its value, and the information one sample has about the model's outputs."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    """Refuse a weighted or smoothed loss, which is no likelihood of the data."""
    changed = [key for key in ("weight", "pos_weight") if getattr(loss, key, None) is not None]
    changed += ["label_smoothing"] if getattr(loss, "label_smoothing", 0) else []
    changed += ["reduction"] if getattr(loss, "reduction", "mean") != "mean" else []
    if changed:
        raise ValueError(f"loss {loss!r} with {', '.join(changed)} is not a plain likelihood: use its defaults")


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
            raise ValueError(
                f"cross entropy of outputs {tuple(output.shape)} and labels {tuple(target.shape)} a sample: give one "
                "label and a row of classes, with positions laid out as samples"
            )
        return F.cross_entropy(output[None], target[None])
    if kind == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(
            output, target.to(output.dtype).reshape(output.shape), reduction="sum"
        )
    return 0.5 * (precision.to(output) * (output - target.reshape(output.shape)).reshape(-1).square()).sum()


def output_factor(kind: str, output: Tensor, precision: Tensor) -> Tensor:
    """A matrix A such that A A' is the Fisher information that one sample has about the outputs of the model."""
    if kind == "cross_entropy":
        p = output.softmax(-1)
        return torch.diag(p.sqrt()) - p[:, None] * p.sqrt()[None, :]
    if kind == "binary_cross_entropy":
        p = output.reshape(-1).sigmoid()
        return torch.diag((p * (1 - p)).sqrt())
    return torch.diag(precision.to(output).sqrt().expand(output.numel()))
