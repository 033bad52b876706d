"""From weights and sigmas to scores: what every tensor's criterion is given, computed when asked for."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

from prunewald.core.base import Criterion, Online
from prunewald.core.ranking import Ranked, Scores
from prunewald.core.weights import Group, Weight, WeightStats, spread
from prunewald.model.slices import Slice
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Plan
from prunewald.pruning.watching import Watcher
from prunewald.util.tensors import accumulator, dense

SpreadOf: TypeAlias = Callable[[Group], float]


def weigh(
    zeros: Zeros,
    watcher: Watcher,
    sigma: Online | None,
    present: Mapping[str, Tensor],
    *,
    tests: bool = False,
    all_alive: bool = False,
) -> dict[str, Weight]:
    """The parameters of one pruning, after a check that they can be scored, and that there is the sigma that is wanted.

    `present` are the model's parameters as they are now. With `tests` the values are those that the standard errors are
    of; with `all_alive` pruned weights compete too.
    """
    for name, param in zeros.params.items():
        if present.get(name) is not param:
            raise ValueError(f"{name!r} is not the parameter it was when the Pruner was attached: attach a new Pruner")
        low, high = param.data.aminmax()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name!r} has NaN or infinite weights: prune an earlier checkpoint")
    averages: Mapping[str, Tensor] = {}
    if sigma is not None:
        watcher.check(sigma)
        averages = watcher.averages(sigma) if tests else {}
    alive = {} if all_alive else {name: zeros.mask(name) for name in zeros.alive}
    return {
        name: Weight(name, param, alive.get(name), averages[name].to(param.device) if name in averages else None)
        for name, param in zeros.params.items()
    }


def score(plan: Plan, weights: Mapping[str, Weight], slices: Sequence[Slice], watcher: Watcher) -> Scores:
    """The scores of all slices, each computed when it is asked for."""
    by_name = {part.name: part for part in slices}
    doubles = any(weight.param.dtype == torch.float64 for weight in weights.values())
    dtype = torch.float64 if doubles else torch.float32  # one for all, so that all can be compared
    spreads = cache(lambda group, name: _spread(weights, slices, group, by_name[name]))

    def rank(name: str) -> Ranked:
        part = by_name[name]
        stats = _stats(plan, part, weights[part.param], watcher, lambda group: spreads(group, name))
        return _ranked(plan.criterion, stats, dtype)

    def weight(name: str) -> Tensor:
        part = by_name[name]
        return part.take(weights[part.param].value)

    return Scores({part.name: part.take(weights[part.param].param).shape for part in slices}, rank, weight)


def _stats(plan: Plan, part: Slice, whole: Weight, watcher: Watcher, spread_of: SpreadOf) -> WeightStats:
    """What is known of one slice."""
    sigma, dead = (None, None) if plan.uncertainty is None else watcher.sigma(plan.uncertainty, whole)
    grad, kept = whole.param.grad, watcher.statistic(whole.name)
    grad = None if grad is None else dense(grad)
    value, alive, sigma, dead, grad, kept = part.take_each(whole.value, whole.alive, sigma, dead, grad, kept)
    assert value is not None
    kind = accumulator(value)
    return WeightStats(
        name=part.name,
        weight=value.to(kind),
        alive=alive,
        sigma=sigma,
        dead=dead,
        spread_of=spread_of,
        gradient=None if grad is None else grad.to(kind),
        statistic=None if kept is None else kept.to(value.device),
    )


def _ranked(criterion: Criterion, stats: WeightStats, dtype: torch.dtype) -> Ranked:
    """Score one slice; what is pruned already ranks below everything."""
    score = criterion(stats)
    if score.shape != stats.weight.shape:
        raise ValueError(
            f"{criterion!r} gave scores of shape {tuple(score.shape)} for {stats.name!r}, "
            f"whose shape is {tuple(stats.weight.shape)}: return one score a weight"
        )
    if score.min().isnan():
        raise ValueError(f"{criterion!r} gave a NaN score for {stats.name!r}: check its sigma")
    return Ranked(in_order(score.to(dtype), stats.weight, stats.alive), stats.weight.to(dtype), stats.dead)


def in_order(score: Tensor, weight: Tensor, alive: Tensor | None) -> Tensor:
    """What is pruned already ranks below everything, then what is zero anyway: a sparsity is a share of zeros."""
    lowest = torch.finfo(score.dtype).min
    zero = weight == 0
    if alive is None and (not zero.any() or bool(score[zero].max() <= score.min())):
        return score  # zeros rank last as it is: no copy is needed
    score = score.clamp(min=lowest).masked_fill_(zero, lowest)
    return score if alive is None else score.masked_fill(~alive, -torch.inf)


def _spread(weights: Mapping[str, Weight], slices: Sequence[Slice], group: Group, part: Slice) -> float:
    """The standard deviation of the survivors of a layer, of a slice, or of all slices."""
    if group == "layer":
        return weights[part.param].spread
    chosen = [part] if group == "slice" else slices
    pairs = [(one, weights[one.param]) for one in chosen]
    living = [(one.take(w.param), None if w.alive is None else one.take(w.alive)) for one, w in pairs]
    return spread(living, repr(part.name) if group == "slice" else "all targets")
