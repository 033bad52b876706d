"""From weights and sigmas to scores: what every tensor's criterion is given, computed when asked for."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from prunewald.core.base import Estimate
from prunewald.core.ranking import Ranked, Scores, kth_smallest, zeros_last
from prunewald.core.weights import Group, Weight, WeightStats, spread
from prunewald.model.slices import Slice
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Plan
from prunewald.pruning.watching import Reading
from prunewald.util.tensors import pieces

_KEPT = 1 << 22  # scores of so many weights are kept from one use to the next


def weigh(zeros: Zeros, present: Mapping[str, Tensor], *, all_alive: bool) -> dict[str, Weight]:
    """The parameters of one pruning, after a check that they can be scored.

    `present` are the model's parameters as they are now; with `all_alive` pruned weights compete too.
    """
    for name, param in zeros.params.items():
        if present.get(name) is not param:
            raise ValueError(f"{name!r} is not the parameter it was when the Pruner was attached: attach a new Pruner")
        low, high = param.data.aminmax()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name!r} has NaN or infinite weights: prune an earlier checkpoint")
    alive = {} if all_alive else {name: zeros.mask(name) for name in zeros.alive}
    return {name: Weight(name, param, alive.get(name)) for name, param in zeros.params.items()}


class PlannedScores(Scores):
    """The scores of all slices by the criterion of a plan.

    Those of a small model are computed once; those of a large one are never all in memory, and an allocation that
    compares tensors goes through them again.
    """

    def __init__(self, plan: Plan, slices: Sequence[Slice], weights: Mapping[str, Weight], reading: Reading) -> None:
        self._plan, self._weights, self._reading = plan, weights, reading
        self._slices = {part.name: part for part in slices}
        pairs = [(part, weights[part.param].param) for part in slices]
        super().__init__({s.name: p.shape if s.index is None else s.take(p).shape for s, p in pairs})
        self.layouts = {part.name: part.layout for part in slices if part.layout is not None}
        self._kept: dict[str, Ranked] | None = {} if sum(self.sizes.values()) <= _KEPT else None
        self._spreads: dict[str, float] = {}
        self._last: tuple[Weight, Estimate] | None = None
        if plan.scope.together and plan.uncertainty is not None and plan.uncertainty.unscaled is not plan.uncertainty:
            self._scale_(replace(reading, online=plan.uncertainty.unscaled))
        doubles = any(weight.param.dtype == torch.float64 for weight in weights.values())
        self._dtype = torch.float64 if doubles else torch.float32  # one for all, so that all can be compared

    def weight(self, name: str) -> Tensor:
        """The weights of one slice; what is pruned is zero, whatever was written there since."""
        part = self._slices[name]
        whole = self._weights[part.param]
        value = whole.param.detach()
        return part.take(value if whole.alive is None else value.where(whole.alive, 0.0))

    def __getitem__(self, name: str) -> Ranked:
        if self._kept is None or name not in self._kept:
            ranked = self._ranked(self._stats(self._slices[name]))
            if self._kept is None:
                return ranked
            self._kept[name] = ranked
        return self._kept[name]

    def _stats(self, part: Slice) -> WeightStats:
        """What is known of one slice."""
        whole = self._weights[part.param]
        value, grad = whole.param.detach(), whole.param.grad
        if whole.average is not None:
            value = whole.average.to(value.device)
        if self._plan.uncertainty is None:
            sigma, dead = None, None
        elif part.index is None:
            sigma, dead = self._reading.sigma(whole)
        else:
            sigma, dead = self._shared(whole)
        if grad is not None and grad.is_sparse:
            grad = grad.to_dense()
        known = value, whole.alive, sigma, dead, grad, self._reading.statistics.get(part.param)
        weight, alive, sigma, dead, grad, statistic = known if part.index is None else part.take_each(*known)
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32
        assert weight is not None
        return WeightStats(
            part.name,
            weight.to(wide),
            alive,
            sigma,
            dead,
            lambda group: whole.spread if group == "layer" else self._spread(group, part),
            None if grad is None else grad.to(wide),
            None if statistic is None else statistic.to(value.device),
        )

    def _shared(self, whole: Weight) -> Estimate:
        """Sigma of a parameter with several slices, which follow one another: it is computed once for all of them."""
        if self._last is None or self._last[0] is not whole:
            self._last = whole, self._reading.sigma(whole)
        return self._last[1]

    def _ranked(self, stats: WeightStats) -> Ranked:
        """Score one slice; what is pruned already ranks below everything."""
        criterion = self._plan.criterion
        score = criterion(stats)
        if score.shape != stats.weight.shape:
            raise ValueError(
                f"{criterion!r} gave scores of shape {tuple(score.shape)} for {stats.name!r}, "
                f"whose shape is {tuple(stats.weight.shape)}: return one score a weight"
            )
        if score.min().isnan():
            raise ValueError(f"{criterion!r} gave a NaN score for {stats.name!r}: check its sigma")
        ordered = zeros_last(score.to(self._dtype), stats.weight, stats.alive)
        return Ranked(ordered, stats.weight.to(self._dtype), stats.dead)

    def _scale_(self, unscaled: Reading) -> None:
        """Give sigma one scale in all parameters: its median over all living weights becomes their spread."""

        def living() -> Iterator[Tensor]:
            for part in self._slices.values():
                whole = self._weights[part.param]
                sigma, alive = part.take_each(unscaled.sigma(whole).sigma, whole.alive)
                assert sigma is not None
                yield from pieces(sigma[sigma.isfinite() if alive is None else sigma.isfinite() & alive])

        count = sum(map(len, living()))
        scale = self._spread("model") / float(kth_smallest(living, (count + 1) // 2)[0]) if count > 1 else 1.0
        for weight in self._weights.values():
            weight.scale = scale

    def _spread(self, group: Group, part: Slice | None = None) -> float:
        """The standard deviation of the survivors of a slice, or of all slices, computed once."""
        key = part.name if part is not None and group == "slice" else ""
        if key not in self._spreads:
            pairs = [(s, self._weights[s.param]) for s in ([self._slices[key]] if key else self._slices.values())]
            living = [(s.take(w.param), None if w.alive is None else s.take(w.alive)) for s, w in pairs]
            self._spreads[key] = spread(living, repr(key) if key else "all targets")
        return self._spreads[key]
