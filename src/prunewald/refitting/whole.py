"""A refit from beginning to end: one walk through the model, then the whole is judged, and taken back if need be."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.distributed import summed
from prunewald.model.inputs import unread
from prunewald.model.modules import evaluating
from prunewald.pruning.refitted import LayerRefit, Refit
from prunewald.refitting.chains import candidates
from prunewald.refitting.examples import Examples
from prunewald.refitting.feed import Given
from prunewald.refitting.judging import Judge
from prunewald.refitting.kept import Kept
from prunewald.refitting.order import Trace
from prunewald.refitting.originals import Originals, named_tensors
from prunewald.refitting.passes import Passes
from prunewald.refitting.solving import RIDGES
from prunewald.refitting.stages import Stage, Stages
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
_NO_JUDGE = (
    "{} on the examples held back is {}, and cannot judge a refit: look at the data, and at loss= where it is given; "
    "the model is as it was"
)
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


def refit_(model: nn.Module, masks: Mapping[str, Tensor], dense: Originals, data: Iterable[Any], wish: Wish) -> Refit:
    """Refit the weights of a model that are alive, in place; on any error the model is as it was."""
    begun = time.perf_counter()
    examples = Examples(data, model, wish.held_back, wish.limit)
    tensors = named_tensors(model)
    kept = Kept(tensors, masks, dense)
    names = {id(tensor): name for name, tensor in tensors.items()}
    with evaluating(model), exact_and_plain(model), unread():
        chains = candidates(model, "")
        alone = [block for chain in chains for block in chain.blocks.values()] if dense.on_disk else []
        passes = Passes(model, names, dense, masks, alone)
        judge = Judge(passes, examples, wish.loss)
        before = judge()  # first: what a Pruner looks at before a first pass in eval mode is not what the model does
        examples.check()
        trace, used, looked_up = passes.trace(next(iter(examples)), chains)
        rows = _left(model, masks, trace, used, looked_up, wish.ignore)
        walk = Walk(model, trace.units, Setting(masks, dense, wish.ridges, wish.dense_inputs), kept)
        stage = Stage(passes, trace, chains, examples)
        try:
            rows += Stages(walk, names, dense, masks, looked_up | wish.ignore).go(stage)
            after, taken = _settled(judge, kept, before, stage.feed)
        except BaseException:
            kept.put_()
            raise
    notes: tuple[str, ...] = ()
    if walk.short:
        notes = (_SHORT.format(some(map(repr, walk.short), 3)),)
        warn(notes[0])
    fitted, held = map(int, summed(torch.tensor([examples.count[False], examples.count[True]])))
    seconds = time.perf_counter() - begun
    return Refit(rows, fitted, held, judge.words, before, after, taken, seconds, notes)


def _settled(judge: Judge, kept: Kept, before: float, feed: Iterable[Given]) -> tuple[float, float]:
    """Judge the whole; where it is no better than before, go less far, or nowhere: the figure, and how far it was."""
    after = judge(feed)
    if after <= before:
        return after, 1.0
    found = kept.now()
    if not math.isfinite(before):
        raise ValueError(_NO_JUDGE.format(judge.words, before))
    tried = [(before, 0.0)]
    for step in _STEPS:
        kept.put_(found, step)
        tried.append((judge(), step))
    after, step = min(one for one in tried if math.isfinite(one[0]))
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
def exact_and_plain(model: nn.Module) -> Iterator[None]:
    """Products in full float32, nothing compiled, and no cache of what a decoder has computed, in a with block."""
    precision = torch.get_float32_matmul_precision()
    configs = {id(config): config for module in model.modules() if (config := vars(module).get("config")) is not None}
    caching = [config for config in configs.values() if vars(config).get("use_cache") is True]
    torch.set_float32_matmul_precision("highest")
    for config in caching:
        config.use_cache = False
    try:
        with torch.compiler.set_stance("force_eager") if "set_stance" in vars(torch.compiler) else nullcontext():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for config in caching:
            config.use_cache = True
