"""From weights and sigmas to scores: what every tensor's criterion is given, computed when asked for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.criteria import Criterion, Magnitude, MagnitudeUncertainty
from prunewald.core.patterns import Element, Pattern
from prunewald.core.ranking import Count, Ranked, Scores
from prunewald.core.weights import Group, Moments, Weight, WeightStats
from prunewald.model.optimizers import keeps_mean_square
from prunewald.model.slices import Slice
from prunewald.pruning.report import TensorReport
from prunewald.statistics.concordance import rank_correlation
from prunewald.uncertainty import Estimate
from prunewald.util.tensors import accumulator, dense

_SAMPLE = 1 << 16  # enough for three digits of a rank correlation


class Scorer:
    """Scores the parts of a model by one criterion, one part at a time."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        parts: Sequence[Slice],
        criterion: Criterion,
        estimate: Callable[[Weight], Estimate] | None,
        statistic: Callable[[str], Tensor | None] = lambda name: None,
    ) -> None:
        self.weights = weights
        self.parts = {part.name: part for part in parts}
        self.criterion = criterion
        self.estimate = estimate
        self.statistic = statistic
        doubles = any(weight.param.dtype == torch.float64 for weight in weights.values())
        self.dtype = torch.float64 if doubles else torch.float32  # one for all, so that all can be compared
        self._spread = cache(self._compute_spread)  # scores are recomputed in each pass, spreads are not

    def scores(self) -> Scores:
        """The scores of all parts, lazily."""
        shapes = {name: part.take(self.weights[part.param].param).shape for name, part in self.parts.items()}
        return Scores(shapes, lambda name: self.rank(self.stats(name)))

    def stats(self, name: str) -> WeightStats:
        """What is known of one part."""
        part = self.parts[name]
        weight = self.weights[part.param]
        estimate = self.estimate(weight) if self.estimate else None
        value = part.take(weight.param.detach())
        grad, statistic = weight.param.grad, self.statistic(part.param)
        return WeightStats(
            name=name,
            weight=value.to(accumulator(value)),
            alive=None if weight.alive is None else part.take(weight.alive),
            sigma=None if estimate is None else part.take(estimate.sigma),
            dead=None if estimate is None or estimate.dead is None else part.take(estimate.dead),
            spread_of=lambda group: self._spread(group, name),
            gradient=None if grad is None else part.take(dense(grad)).to(accumulator(value)),
            statistic=None if statistic is None else part.take(statistic).to(value.device),
        )

    def rank(self, stats: WeightStats) -> Ranked:
        """Score one part; what is pruned already ranks below everything."""
        score = self.criterion(stats)
        if score.shape != stats.weight.shape:
            raise ValueError(
                f"{self.criterion!r} gave scores of shape {tuple(score.shape)} for {stats.name!r}, "
                f"whose shape is {tuple(stats.weight.shape)}: return one score a weight"
            )
        if score.min().isnan():
            raise ValueError(f"{self.criterion!r} gave a NaN score for {stats.name!r}: check its sigma")
        return Ranked(_in_order(score.to(self.dtype), stats), stats.weight.to(self.dtype), stats.dead)

    def untouched(self, name: str, keep: Tensor) -> TensorReport:
        """The row of a part that a pruning leaves as it is, and that needs no score for it."""
        kept = int(torch.count_nonzero(keep))
        return TensorReport(name, tuple(keep.shape), keep.numel(), kept, None, None, torch.nan, 1.0)

    def row(self, stats: WeightStats, ranked: Ranked, keep: Tensor, pattern: Pattern, count: Count) -> TensorReport:
        """What keeping `keep`, which the pattern gave for this count, means for one part; for the report."""
        kept = int(torch.count_nonzero(keep))
        plain, single = isinstance(self.criterion, Magnitude), isinstance(pattern, Element)
        return TensorReport(
            name=stats.name,
            shape=tuple(stats.weight.shape),
            weights=keep.numel(),
            kept=kept,
            threshold=_threshold(stats, ranked.score, keep) if single and 0 < kept < keep.numel() else None,
            dead=None if stats.dead is None else _share(stats.dead, stats.alive),
            correlation=1.0 if plain else _correlation(stats, ranked),
            overlap=1.0 if plain else _overlap(stats, keep, pattern, count),
        )

    def _compute_spread(self, group: Group, name: str) -> float:
        part = self.parts[name]
        if group == "layer":
            return self.weights[part.param].spread
        moments = Moments()
        for one in [part] if group == "part" else self.parts.values():
            weight = self.weights[one.param]
            moments.add(one.take(weight.param), None if weight.alive is None else one.take(weight.alive))
        return moments.std(repr(name) if group == "part" else "all targets")


def default_criterion(weights: Iterable[tuple[str, Tensor, Optimizer | None]]) -> tuple[Criterion, list[str]]:
    """Tau, if every weight has an optimizer that keeps its second moment; else magnitude, and a note that says why."""
    for name, param, optimizer in weights:
        if not keeps_mean_square(optimizer, param):
            held = (
                "there is no optimizer" if optimizer is None else f"{type(optimizer).__name__} holds no second moment"
            )
            note = f"criterion: magnitude, since {held} of {name!r} (uncertainty=PseudoBootstrap() would give sigma)"
            return Magnitude(), [note]
    return MagnitudeUncertainty(), []


def _threshold(stats: WeightStats, score: Tensor, keep: Tensor) -> float:
    """The lowest score kept; dead weights and zeros, below zero only to be ordered, count as 0."""
    lowest = float(score[keep].min())
    if lowest <= torch.finfo(score.dtype).min:  # a pattern may keep a zero among its neighbours
        lowest = min(0.0, float(score[keep & (stats.weight != 0)].min())) if stats.weight[keep].any() else 0.0
    return lowest if stats.dead is None else max(lowest, 0.0)


def _in_order(score: Tensor, stats: WeightStats) -> Tensor:
    """What is pruned already ranks below everything, then what is zero anyway: a sparsity is a share of zeros."""
    lowest = torch.finfo(score.dtype).min
    zero = stats.weight == 0
    if stats.alive is None and (not zero.any() or bool(score[zero].max() <= score.min())):
        return score  # zeros rank last as it is: no copy is needed
    score = score.clamp(min=lowest).masked_fill_(zero, lowest)
    return score if stats.alive is None else score.masked_fill(~stats.alive, -torch.inf)


def _share(flags: Tensor, alive: Tensor | None) -> float:
    if alive is None:
        return int(torch.count_nonzero(flags)) / flags.numel()
    return int(torch.count_nonzero(flags & alive)) / max(int(torch.count_nonzero(alive)), 1)


def _correlation(stats: WeightStats, ranked: Ranked) -> float:
    step = max(1, stats.weight.numel() // _SAMPLE)
    score, weight = ranked.score.reshape(-1)[::step], stats.weight.reshape(-1)[::step]
    living = score > torch.finfo(score.dtype).min
    return rank_correlation(score[living], weight[living].abs())


def _overlap(stats: WeightStats, keep: Tensor, pattern: Pattern, count: Count) -> float:
    same = pattern(Ranked(_in_order(stats.weight.abs(), stats), stats.weight), count)
    return int(torch.count_nonzero(same & keep)) / max(int(torch.count_nonzero(keep)), 1)
