"""A refit from beginning to end: one walk through the model, then the whole is judged, and taken back if need be."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.modules import evaluating
from prunewald.pruning.refitted import LayerRefit, Refit
from prunewald.refitting.examples import Examples
from prunewald.refitting.judging import Judge
from prunewald.refitting.kept import Kept
from prunewald.refitting.order import Trace
from prunewald.refitting.originals import named_tensors
from prunewald.refitting.passes import Passes
from prunewald.refitting.solving import RIDGES
from prunewald.refitting.walking import Setting, Walk
from prunewald.uncertainty.likelihood import Loss
from prunewald.util.notices import warn
from prunewald.util.text import some

_STEPS = (0.5, 0.25)  # how far the weights go, where all the way is no better than nowhere
_UNREACHED = (
    "{} is not reached by the data: no batch comes to a layer with it; give data that do, or leave it as it is with "
    "ignore={!r}"
)
_TIED = "an embedding has the same weights: left as it was"
_RECURRENT = "recurrent layers are not refitted: left as it was"
_UNKNOWN = "refit does not know how its layer uses it: left as it was"
_SHORT = (
    "fewer examples than inputs: {} have less positions to fit to than a row has weights left, and the ridge carries "
    "the rest; more data would fit better"
)


@dataclass(frozen=True)
class Wish:
    """What the caller of a refit wants: the knobs, without model and data."""

    loss: Loss | None = None
    dense_inputs: bool = False
    ridges: Sequence[float] = RIDGES
    held_back: float = 0.2
    limit: int | None = None
    ignore: frozenset[str] = frozenset()


def refit_(
    model: nn.Module, masks: Mapping[str, Tensor], dense: Mapping[str, Tensor], data: Iterable[Any], wish: Wish
) -> Refit:
    """Refit the weights of a model that are alive, in place; on any error the model is as it was."""
    begun = time.perf_counter()
    examples = Examples(data, model, wish.held_back, wish.limit)
    kept = Kept(named_tensors(model), masks)
    with evaluating(model), _exact(model):
        passes = Passes(model, dense, masks)
        trace, used, looked_up = passes.trace(next(iter(examples)))
        rows = _left(model, masks, trace, used, looked_up, wish.ignore)
        judge = Judge(passes, examples, wish.loss)
        before = judge()
        examples.check()
        setting = Setting(masks, dense, wish.ridges, wish.dense_inputs)
        walk = Walk(model, passes, trace, setting, kept)
        try:
            for step in trace.steps(looked_up | wish.ignore):
                rows += walk.take(step, examples)
            after, taken = _settled(judge, kept, before)
        except BaseException:
            kept.put_()
            raise
    notes: tuple[str, ...] = ()
    if walk.short:
        notes = (_SHORT.format(some(map(repr, walk.short), 3)),)
        warn(notes[0])
    count = examples.count
    seconds = time.perf_counter() - begun
    return Refit(rows, count[False], count[True], judge.words, before, after, taken, seconds, notes)


def _settled(judge: Judge, kept: Kept, before: float) -> tuple[float, float]:
    """Judge the whole; where it is no better than before, go less far, or nowhere: the figure, and how far it was."""
    found = kept.now()
    after = judge()
    if after <= before:
        return after, 1.0
    tried = [(before, 0.0)]
    for step in _STEPS:
        kept.put_(found, step)
        tried.append((judge(), step))
    after, step = min(tried)
    kept.put_(found, step)
    return after, step


def _left(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    trace: Trace,
    used: set[str],
    looked_up: set[str],
    ignore: frozenset[str],
) -> list[LayerRefit]:
    """What is not refitted, and why; an error for a weight that no example comes by."""
    params = dict(model.named_parameters())
    seen = {unit.span.param for unit in trace.units} - looked_up - ignore
    kinds = {id(p): type(m) for m in model.modules() for p in m.parameters(recurse=False)}
    rows = []
    for name in masks:
        if name in seen or params[name].dim() < 2:
            continue
        if name in ignore:
            reason = "ignored: left as it was"
        elif name in looked_up:
            reason = _TIED
        elif name in used:
            recurrent = issubclass(kinds[id(params[name])], nn.RNNBase | nn.RNNCellBase)
            reason = _RECURRENT if recurrent else _UNKNOWN
        else:
            raise ValueError(_UNREACHED.format(repr(name), name))
        rows.append(LayerRefit(name, 0, (), None, None, reason))
    return rows


@contextmanager
def _exact(model: nn.Module) -> Iterator[None]:
    """Products in full float32, and nothing compiled, as long as a with block runs."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
