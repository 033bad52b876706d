"""Units that nothing needs are removed from a copy of a model, which then gives what the masked one gave."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.flow import tensors
from prunewald.model.graph import placed, run
from prunewald.model.masking import Masks
from prunewald.model.modules import plain
from prunewald.model.widths import narrow_, record, set_widths_, widths_after
from prunewald.pruner import Pruner
from prunewald.shrinking.carrying import carried, check_optimizer
from prunewald.shrinking.deciding import Decision, configured, decide
from prunewald.util.notices import warn
from prunewald.util.text import some


def shrink(pruner: Pruner | nn.Module, example_inputs: Any, optimizer: Any = None) -> tuple[nn.Module, Any]:
    """Remove the filters, channels, neurons and heads that are pruned whole: a smaller model, and its optimizer.

    The smaller model is of the same type and gives what the masked one gives, which is checked in eval mode, to 1e-5,
    on `example_inputs`: a tensor, a tuple of arguments, or a dict of keyword arguments. What was given is untouched; of
    an `optimizer`, or a list of them, a copy is returned, which steps the smaller model and goes on where the first is.

    Of a Pruner the masks say what is gone; of a plain model the weights that are zero. A unit goes where all that makes
    it is, or all that reads it. What it emits all the same, a bias or a norm's shift, is added to the bias of what
    reads it. Where there is none, or a convolution pads with zeros, the unit stays, and a warning says so.
    """
    masks = pruner.masks if isinstance(pruner, Pruner) else None
    model = pruner.model if isinstance(pruner, Pruner) else _module(pruner)
    check_optimizer(optimizer, model)
    small = _masked(model, masks)
    wanted = tensors(run(small, example_inputs))
    found = decide(small, example_inputs, masks)
    if not found.gone:
        raise ValueError(found.why_nothing())
    kept = found.kept()
    if error := _cut_(small, found, example_inputs, wanted):
        raise ValueError(f"{error}. {_at_fault(model, masks, found, example_inputs, wanted)}")
    if notes := found.notes():
        warn("; and ".join(notes))
    return small, None if optimizer is None else carried(optimizer, model, small, kept)


def _masked(model: nn.Module, masks: Masks | None) -> nn.Module:
    """A copy of a model whose pruned weights are zero."""
    copy = deepcopy(model)
    params = dict(copy.named_parameters())
    with torch.no_grad():
        for name, mask in ({} if masks is None else masks).items():
            params[name].masked_fill_(~mask.to(params[name].device), 0.0)
    return copy


def _cut_(small: nn.Module, found: Decision, example_inputs: Any, wanted: list[Tensor]) -> str:
    """Remove units from a masked model; what is wrong with what is left, if anything."""
    kept = found.kept()
    found.fold_(small)
    widths = widths_after(small, found.graph.cuts, found.goes) | configured(small, found)
    narrow_(small, kept)
    set_widths_(small, widths)
    record(small, widths)
    return _wrong(small, example_inputs, wanted)


def _at_fault(model: nn.Module, masks: Masks | None, found: Decision, example_inputs: Any, wanted: list[Tensor]) -> str:
    """Which groups cannot be removed, each tried alone, and what to do."""
    faulty = [
        name
        for name, one in found.gone.items()
        if _cut_(_masked(model, masks), replace(found, gone={name: one}), example_inputs, wanted)
    ]
    names = some(faulty or found.gone, 5)
    return (
        f"It lost units of {names}: the code around them may have a width or a number of heads written into it, or in "
        "an attribute of a name that is not known here. Leave these layers out of the pruning (ignore=), or have the "
        "code take widths from its tensors; nothing was changed"
    )


def _module(given: Any) -> nn.Module:
    if not isinstance(given, nn.Module):
        raise TypeError(f"shrink takes a Pruner or a torch.nn.Module, not a {type(given).__name__}")
    return plain(given)


def _wrong(small: nn.Module, example_inputs: Any, wanted: list[Tensor]) -> str:
    """In what a smaller model fails to give what the masked one gives; empty where it does not."""
    places: list[str] = []
    try:
        with placed(small, places):
            got = tensors(run(small, example_inputs))
    except ValueError as error:
        at = f"in {places[-1]!r}" if places and places[-1] else f"in the forward() of {type(small).__name__} itself"
        return f"the smaller model does not run, {at}: {error.__cause__ or error}"
    for one, other in zip(wanted, got, strict=True):
        if one.shape != other.shape:
            return f"the smaller model returns {tuple(other.shape)}, not {tuple(one.shape)}"
        if (gap := _gap(one, other)) > (1e-5 if one.element_size() >= 4 else 4 * torch.finfo(one.dtype).eps):
            return f"the smaller model's outputs differ from the masked one's by {gap:.2g} of the largest"
    return ""


def _gap(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest value where that is above 1."""
    if not one.is_floating_point() or not one.numel():
        return 0.0 if torch.equal(one, other) else torch.inf
    a, b = one.double(), other.double()
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return torch.inf
    return float(torch.where(finite, a - b, 0).abs().max() / torch.where(finite, a, 0).abs().max().clamp(min=1))
