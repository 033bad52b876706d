"""Units that nothing needs are removed from a copy of a model, which then gives what the masked one gave."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.flow import tensors
from prunewald.model.graph import placed, run
from prunewald.model.masking import check_masks
from prunewald.model.modules import plain
from prunewald.model.widths import narrow_, record, set_widths_, widths_after
from prunewald.pruner import Pruner
from prunewald.shrinking.carrying import carried
from prunewald.shrinking.deciding import Decision, configured, decide
from prunewald.util.notices import warn


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
    small = deepcopy(model)
    params = dict(small.named_parameters())
    if masks is not None:
        check_masks(masks, params)
        with torch.no_grad():
            for name, mask in masks.items():
                params[name].masked_fill_(~mask.to(params[name].device), 0.0)
    wanted = tensors(run(small, example_inputs))
    found = decide(small, example_inputs, masks)
    if not found.gone:
        raise ValueError(found.why_nothing())
    kept = found.kept()
    found.fold_()
    widths = widths_after(small, found.graph.cuts, found.goes) | configured(small, found)
    narrow_(small, kept)
    set_widths_(small, widths)
    _check(small, example_inputs, wanted, found)
    record(small, widths)
    for note in found.notes():
        warn(note)
    return small, None if optimizer is None else carried(optimizer, model, small, kept)


def _module(given: Any) -> nn.Module:
    if not isinstance(given, nn.Module):
        raise TypeError(f"shrink takes a Pruner or a torch.nn.Module, not a {type(given).__name__}")
    return plain(given)


def _check(small: nn.Module, example_inputs: Any, wanted: list[Tensor], found: Decision) -> None:
    """Refuse a smaller model that does not run, or gives anything else than the masked one."""
    places: list[str] = []
    try:
        with placed(small, places):
            got = tensors(run(small, example_inputs))
    except ValueError as error:
        at = places[-1] if places else ""
        raise ValueError(
            f"the smaller model does not run in {at!r}: its code may have a width written into it, or in an attribute "
            f"that is not known here ({error.__cause__ or error}). Leave its layers out of the pruning "
            f"(ignore={at + '.*'!r}), or have the code take widths from its tensors"
        ) from error
    for one, other in zip(wanted, got, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"the smaller model returns {tuple(other.shape)}, not {tuple(one.shape)}: {found.where()}")
        if one.is_floating_point() and one.numel():
            a, b = one.double(), other.double()
            finite = a.isfinite()
            size = max(1.0, float(a[finite].abs().max()) if finite.any() else 1.0)
            gap = float((a - b)[finite].abs().max()) if finite.any() else 0.0
            allowed = max(1e-5, 4 * torch.finfo(one.dtype).eps) * size
            if not gap <= allowed or not torch.equal(finite, b.isfinite()):
                raise ValueError(
                    f"the smaller model's outputs differ from the masked one's by {gap:.2g}: {found.where()}"
                )
