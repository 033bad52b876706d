"""The call: a pruner, data and the dense model. What cannot be refitted is refused, and the pruner told of the rest."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from prunewald.model.slices import Slice
from prunewald.model.targets import Target, match
from prunewald.pruning.describing import untouched_row
from prunewald.pruning.holding.holding import Holding
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.refitted import Refit
from prunewald.pruning.report import Report
from prunewald.pruning.view import PrunerView
from prunewald.refitting.originals import Dense, Originals, copied, read_originals
from prunewald.refitting.solving import RIDGES
from prunewald.refitting.whole import Wish, refit_
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.arguments import one_of, real
from prunewald.util.files import FilePath
from prunewald.util.tensors import zero_

_DETACHED = "this Pruner was detached: refit before detach(), or attach a new one and hold_zeros()"
_HELD = "{} holds the weights at values of its own, which a refit would not keep: {}"
_WHOLE = "{!r} is a target in part, and was refitted as a whole: its other weights too are not as they were"
_ALREADY = (
    "refit=... aims at the model as it is before prune(), and this one is pruned already: prune first, then "
    "pw.refit(pruner, data, dense=...) with the model as it was before the first pruning"
)


class Refittable(Protocol):
    """What a refit needs of a pruner."""

    report: Report | None

    @property
    def model(self) -> nn.Module:
        """The model, its pruned weights at zero."""

    @property
    def slices(self) -> Sequence[Slice]:
        """What is pruned."""

    @property
    def zeros(self) -> Zeros:
        """What holds the masks."""

    @property
    def holdings(self) -> Sequence[Holding]:
        """What else holds weights."""

    def restart(self) -> None:
        """Forget what was gathered of the weights."""


def refit(
    pruner: Refittable,
    data: Iterable[Any],
    *,
    dense: Dense | None = None,
    loss: Loss | None = None,
    inputs: Literal["pruned", "dense"] = "pruned",
    ridges: Sequence[float] = RIDGES,
    held_back: float = 0.2,
    limit: int | None = None,
    ignore: Iterable[Target] | Target = (),
    folder: FilePath | None = None,
) -> Report:
    """Refit what a pruning left, layer by layer, by least squares on a few examples: no gradient step, no retraining.

    The masks stay. The surviving weights of each layer, with its bias, are fitted so that on the inputs that the pruned
    model has there by now they give what the layer gives in the `dense` model: a model, its state_dict, or a file of
    it. With `inputs="dense"` they are fitted on the inputs that the layer has there.

    `data` are batches, read several times: tensors, (inputs, targets), or dicts as Hugging Face has them; of these the
    first `limit`. A share `held_back` of the examples is not fitted to. They choose, layer by layer, the ridge towards
    the present weights and whether it is refitted at all, or a BatchNorm measured anew, and in the end whether the
    whole is kept: by `loss`, of outputs and targets, or by the distance to the dense outputs. On them the model is
    never worse than before. `ignore` are layers to leave alone. With a `folder` the dense weights are on disk there
    meanwhile, and only those of one block at a time in memory. On any error the model is as it was.
    """
    check(pruner)
    one_of("inputs", inputs, ("pruned", "dense"))
    ignored = frozenset(part.param for target in _listed(ignore) for part in _matched(pruner.model, target))
    wish = Wish(loss, inputs == "dense", _ridges(ridges), held_back, limit, ignored)
    masks = {name: pruner.zeros.mask(name) for name in pruner.zeros.held}
    with closing(Originals(read_originals(dense, pruner.model, masks), folder)) as originals:
        found = _with_notes(refit_(pruner.model, masks, originals, data, wish), pruner)
    with torch.no_grad():
        for name in pruner.zeros.alive:
            pruner.zeros.hold_(name)
    pruner.restart()
    pruner.report = report = replace(pruner.report or _own(pruner), refit=found)
    return report


def refit_pruned(
    pruner: Refittable, masks: Mapping[str, Tensor], data: Iterable[Any], folder: FilePath | None = None
) -> Refit:
    """Zero what masks prune in a model that is dense, and refit the rest, before the masks are held."""
    check(pruner)
    if any(not bool(mask.all()) for mask in pruner.zeros.alive.values()):
        raise ValueError(_ALREADY)
    params = dict(pruner.model.named_parameters())
    with torch.no_grad(), closing(copied(pruner.model, masks, folder)) as dense:
        try:
            for name, mask in masks.items():
                zero_(params[name], mask)
            return _with_notes(refit_(pruner.model, masks, dense, data, Wish()), pruner)
        except BaseException:
            for name in masks:
                params[name].detach().copy_(dense.read({name: params[name]})[name])
            raise


def check(pruner: Refittable) -> None:
    """Refuse a pruner whose weights cannot be refitted."""
    if not isinstance(pruner, PrunerView):
        raise TypeError(f"pruner={repr(pruner)[:200]}: give the Pruner of the model")
    if not pruner.zeros.attached:
        raise ValueError(_DETACHED)
    for holding in pruner.holdings:
        remedy = "finish() it, then refit" if holding.competes else "detach() it, refit first, and quantise then"
        raise ValueError(_HELD.format(type(holding).__name__, remedy))


def _ridges(ridges: Sequence[float]) -> tuple[float, ...]:
    found = tuple(real("ridges", ridge, least=0) for ridge in ridges)
    if not found:
        raise ValueError(f"ridges={ridges!r}: give at least one, such as {RIDGES}")
    return found


def _listed(ignore: Any) -> list[Target]:
    return list(ignore) if isinstance(ignore, list | tuple | set | frozenset) else [ignore]


def _matched(model: nn.Module, target: Target) -> list[Slice]:
    if not (found := match(model, target)):
        raise ValueError(f"ignore={target!r} matches no parameter of {type(model).__name__}")
    return found


def _with_notes(found: Refit, pruner: Refittable) -> Refit:
    """The same, saying which layers were refitted beyond what is pruned of them."""
    changed = {layer.name for layer in found.layers if layer.changed}
    in_part = dict.fromkeys(part.param for part in pruner.slices if part.index is not None)
    notes = (_WHOLE.format(name) for name in in_part if name in changed)
    return replace(found, notes=(*found.notes, *notes))


def _own(pruner: Refittable) -> Report:
    """A report of masks that came from elsewhere."""
    rows = [untouched_row(part.name, part.take(pruner.zeros.mask(part.param))) for part in pruner.slices]
    return Report(rows, "masks that were given", "", "as given")
