"""From weights and sigmas to scores: what every tensor's criterion is given, computed when asked for."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from prunewald.core.base import Criterion, Estimate, Online
from prunewald.core.kth import lower_median
from prunewald.core.ranking import Ranked, Scores, zeros_last
from prunewald.core.weights import Group, Weight, WeightStats, living_sigma, spread
from prunewald.model.slices import Slice, layer_of
from prunewald.pruning.holding.zeros import Zeros
from prunewald.pruning.plan import Plan
from prunewald.pruning.watching import Reading

REPLACED = "{!r} is not the parameter it was when the Pruner was attached: attach a new Pruner"
_KEPT = 1 << 22  # scores of so many weights are kept from one use to the next


def weigh(zeros: Zeros, present: Mapping[str, Tensor], *, all_alive: bool) -> dict[str, Weight]:
    """The parameters of one pruning, after a check that they can be scored.

    `present` are the model's parameters as they are now; with `all_alive` pruned weights compete too.
    """
    for name, param in zeros.params.items():
        if present.get(name) is not param:
            raise ValueError(REPLACED.format(name))
        low, high = param.data.aminmax()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name!r} has NaN or infinite weights: prune an earlier checkpoint")
    alive = {} if all_alive else {name: zeros.mask(name) for name in zeros.alive}
    return {name: Weight(name, param, alive.get(name)) for name, param in zeros.params.items()}


class Scored(dict[str, Tensor]):
    """Scores by parameter name, with what made them."""

    def __init__(
        self, scores: Mapping[str, Tensor], criterion: Criterion, uncertainty: Online | None, notes: tuple[str, ...]
    ) -> None:
        super().__init__(scores)
        self.criterion, self.uncertainty, self.notes = criterion, uncertainty, notes


class PlannedScores(Scores):
    """The scores of all slices by the criterion of a plan.

    Those of a small model are computed once; those of a large one are never all in memory, and an allocation that
    compares tensors goes through them again.
    """

    def __init__(
        self,
        plan: Plan,
        slices: Sequence[Slice],
        weights: Mapping[str, Weight],
        reading: Reading,
        prunable: Callable[[], Iterable[Tensor]] = tuple,  # all weights of the model, wanted for their spread alone
    ) -> None:
        self._plan, self._weights, self._reading, self._prunable = plan, weights, reading, prunable
        self._slices = {part.name: part for part in slices}
        pairs = [(part, weights[part.param].param) for part in slices]
        super().__init__({s.name: p.shape if s.index is None else s.take(p).shape for s, p in pairs})
        self.layouts = {part.name: part.layout for part in slices if part.layout is not None}
        if plan.scope.whole_layers:
            self.layers = {part.name: layer_of(part) for part in slices}
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
        value = value if whole.alive is None else value.where(whole.alive, 0.0)
        return value if part.index is None else part.take(value)

    def part(self, name: str) -> Slice:
        """The slice of this name."""
        return self._slices[name]

    def alive(self, name: str) -> Tensor | None:
        """The mask of one slice; None where nothing of it is pruned, or where pruned weights compete too."""
        part = self._slices[name]
        mask = self._weights[part.param].alive
        return None if mask is None else part.take(mask)

    def spread(self, name: str, group: Group = "layer") -> float:
        """The standard deviation of the survivors of a slice, or of a group that it is in, computed once."""
        if group == "layer" and name not in self.layers:
            return self._weights[self._slices[name].param].spread
        key = {"slice": name, "layer": f"layer {self.layers.get(name)}"}.get(group, f"all of the {group}")
        if key not in self._spreads:
            self._spreads[key] = spread(self._living(name, group), repr(key) if group == "slice" else key)
        return self._spreads[key]

    def __getitem__(self, name: str) -> Ranked:
        if self._kept is None or name not in self._kept:
            ranked = self._ranked(self.stats(name))
            if self._kept is None:
                return ranked
            self._kept[name] = ranked
        return self._kept[name]

    def stats(self, name: str) -> WeightStats:
        """What is known of one slice."""
        part = self._slices[name]
        whole = self._weights[part.param]
        value, grad = whole.param.detach(), self._reading.gradients.get(part.param, whole.param.grad)
        if whole.average is not None:
            value = whole.average.to(value.device)
        if self.layers and whole.scale is None and self._plan.uncertainty is not None:
            self._set_scale_(part, whole)
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
            lambda group: whole.spread if group == "layer" and not self.layers else self.spread(part.name, group),
            None if grad is None else grad.to(wide),
            None if statistic is None else statistic.to(value.device),
        )

    def _shared(self, whole: Weight) -> Estimate:
        """Sigma of a parameter with several slices, which follow one another: it is computed once for all of them."""
        if self._last is None or self._last[0] is not whole:
            self._last = whole, self._reading.sigma(whole)
        return self._last[1]

    def _set_scale_(self, part: Slice, whole: Weight) -> None:
        """Give a parameter the scale of sigma that the largest in its layer finds: one layer has one scale."""
        beside = (s.param for s in self._slices.values() if self.layers[s.name] == self.layers[part.name])
        first = max((self._weights[name] for name in beside), key=lambda one: one.param.numel())
        if first is not whole:
            self._reading.sigma(first)
            whole.scale = first.scale

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

    def _living(self, name: str, group: Group) -> list[tuple[Tensor, Tensor | None]]:
        """The tensors of a group, each with the mask of its survivors."""
        if group == "slice" or group == "targets":
            pairs = [(s, self._weights[s.param]) for s in self._slices.values() if group == "targets" or s.name == name]
            return [(s.take(w.param), None if w.alive is None else s.take(w.alive)) for s, w in pairs]
        within = [s for s in self._slices.values() if group == "model" or self.layers[s.name] == self.layers[name]]
        own = [self._weights[param] for param in dict.fromkeys(s.param for s in within)]
        known = {id(weight.param) for weight in own}
        others = self._prunable() if group == "model" else ()
        return [(w.param, w.alive) for w in own] + [(p, None) for p in others if id(p) not in known]

    def _scale_(self, unscaled: Reading) -> None:
        """Give sigma one scale in all parameters: its median over all living weights becomes their spread."""

        def living() -> Iterator[Tensor]:
            for part in self._slices.values():
                whole = self._weights[part.param]
                sigma, dead, alive = part.take_each(*unscaled.sigma(whole), whole.alive)
                assert sigma is not None
                yield from living_sigma(sigma, dead, alive)

        middle = lower_median(living)
        scale = self.spread(next(iter(self._slices)), "targets") / middle if middle else 1.0
        for weight in self._weights.values():
            weight.scale = scale
