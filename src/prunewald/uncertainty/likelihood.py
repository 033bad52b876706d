"""The likelihood that a loss stands for: its value, and the information one sample has about the model's outputs."""

import math
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
# What models compute themselves, and whether with labels that are shifted by one.
_OWN = (("cross_entropy", False), ("cross_entropy", True), ("squared_error", False), ("binary_cross_entropy", False))
_ALIKE = 1e-3  # a relative difference by which two computations of one loss may differ, in half precision too
# With these settings a loss is the likelihood of its name; most losses have only some of them.
_PLAIN = {"weight": None, "pos_weight": None, "label_smoothing": 0, "log_input": True}
_POSITIONS = (
    "cross entropy of {} a sample: give one label and a row of classes, with positions laid out as samples; or use "
    "FisherDiagonal(), which takes sequences of labels as samples"
)
_UNFIT = "cross entropy of outputs {} and labels {}: give a label for each row of classes, outputs (..., classes)"
_EITHER = (
    "cross entropy of outputs {} and labels {}: classes may be in the second dimension or in the last, and both are "
    "as many; give batches whose length is another"
)
_UNRECOGNISED = (
    "the loss that the model computes itself, {:.6g}, is no cross entropy, squared error or binary cross entropy of "
    "its outputs {} and labels {}: give loss=, such as 'cross_entropy'"
)


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


def as_function(loss: Loss) -> tuple[Callable[..., Tensor], bool]:
    """A loss as a function, and whether it is one of torch's, or a name: these take the tensor of outputs."""
    if isinstance(loss, str):
        return _NAMES[likelihood(loss)][0], True
    own = type(loss) in vars(nn).values() if isinstance(loss, nn.Module) else any(loss is f for f in vars(F).values())
    return loss, own


def by_position(output: Tensor, target: Tensor, *, last: bool = False) -> tuple[Tensor, Tensor]:
    """Outputs with labels at several positions as a row of classes for each label; all others as they are.

    Classes are in the second dimension, as torch has them, or in the last, as language models have them: that which
    fits, and with `last` the last.
    """
    if target.is_floating_point() or target.dim() < 2 or output.dim() != target.dim() + 1:
        return output, target
    second = not last and target.shape == (output.shape[0], *output.shape[2:])
    at_end = target.shape == output.shape[:-1]
    if second and at_end:
        raise ValueError(_EITHER.format(tuple(output.shape), tuple(target.shape)))
    if not (second or at_end):
        raise ValueError(_UNFIT.format(tuple(output.shape), tuple(target.shape)))
    rows = output.movedim(1, -1) if second else output
    return rows.flatten(0, -2), target.flatten()


def recognised(loss: Tensor, output: Tensor, target: Any) -> tuple[str, bool]:
    """The likelihood of a loss that a model computed itself, by its value, and whether it shifts labels by one.

    A model that predicts the next token compares its outputs with the labels one position on.
    """
    found, shape = float(loss), tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
    for kind, shift in _OWN:
        try:
            value = float(_valued(kind, shift, output.float(), target))
        except (ValueError, RuntimeError, AttributeError, IndexError):  # it does not even fit the labels
            continue
        if math.isclose(value, found, rel_tol=_ALIKE, abs_tol=_ALIKE):
            return kind, shift
    raise ValueError(_UNRECOGNISED.format(found, tuple(output.shape), shape))


def _valued(kind: str, shift: bool, output: Tensor, target: Tensor) -> Tensor:
    """The mean loss that a model would compute itself if it was of this kind."""
    if shift and target.dim() < 2:
        raise ValueError
    if kind == "cross_entropy":
        pairs = (output[:, :-1], target[:, 1:]) if shift else (output, target)
        return F.cross_entropy(*by_position(*pairs, last=True))
    target = target.reshape(output.shape).to(output.dtype)
    return F.mse_loss(output, target) if kind == "squared_error" else F.binary_cross_entropy_with_logits(output, target)


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


def negative_log_likelihood(
    kind: str, output: Tensor, target: Tensor, precision: Tensor, *, last: bool = False
) -> Tensor:
    """The negative log-likelihood of one sample, up to a constant; `precision` is that of each squared output.

    That of a sequence with a label at each position is the sum over those that are not ignored; `last` says that
    classes are in the last dimension.
    """
    if kind == "cross_entropy":
        rows, labels = by_position(output[None], target[None], last=last)
        if rows.dim() != 2 or labels.dim() != 1:
            raise ValueError(_UNFIT.format(tuple(output.shape), tuple(target.shape)))
        return F.cross_entropy(rows, labels, reduction="sum")
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
        _check_single(output)
        return output.softmax(-1) - F.one_hot(target, output.numel())
    flat, observed = output.reshape(-1), target.reshape(-1)
    if kind == "squared_error":
        return precision.to(flat) * (flat - observed)
    return (flat.exp() if kind == "poisson" else flat.sigmoid()) - observed


def _check_single(output: Tensor) -> None:
    if output.dim() != 1:
        raise ValueError(_POSITIONS.format(f"outputs {tuple(output.shape)}"))


def output_factor(kind: str, output: Tensor, precision: Tensor) -> Tensor:
    """A matrix A such that A A' is the Fisher information that one sample has about the outputs of the model."""
    exact = output.reshape(-1).double()  # one minus a probability loses digits
    if kind == "cross_entropy":
        _check_single(output)
        p = exact.softmax(-1)
        factor = torch.diag(p.sqrt()) - p[:, None] * p.sqrt()[None, :]
    elif kind == "binary_cross_entropy":
        factor = torch.diag((exact.sigmoid() * (-exact).sigmoid()).sqrt())
    elif kind == "poisson":
        factor = torch.diag((exact / 2).exp())
    else:
        factor = torch.diag(precision.to(exact).sqrt().expand(exact.numel()))
    return factor.to(output)
