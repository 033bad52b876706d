"""What a pruning would go by at one moment, for those who draw it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunewald.core.patterns import by_layout
from prunewald.core.ranking import Count
from prunewald.core.weights import WeightStats
from prunewald.pruning.plan import Plan
from prunewald.pruning.scoring import PlannedScores
from prunewald.pruning.selecting import keep_counts, reached
from prunewald.util.tensors import count_true


@dataclass(frozen=True)
class Sight:
    """The plan of a pruning, the scores it would choose by, and what is said of them."""

    plan: Plan
    scores: PlannedScores
    degrees: float | None  # of freedom of z = w / sigma; None where it is normal
    notes: tuple[str, ...]
    averages: Mapping[str, Tensor]  # by parameter, the weights that standard errors are of, where not the present ones

    def stats(self) -> Iterator[WeightStats]:
        """What is known of each target, one after another: of a large model they are never all in memory."""
        return (self.scores.stats(name) for name in self.scores)

    def tested(self, stats: WeightStats) -> Tensor:
        """The weights of a target that its standard errors are of."""
        part = self.scores.part(stats.name)
        average = self.averages.get(part.param)
        return stats.weight if average is None else part.take(average).to(stats.weight)

    def keep(self, name: str, count: Count, *, by_magnitude: bool = False) -> Tensor:
        """Which weights of a target stay where so many do, as its criterion says, or as |w| would have it."""
        ranked, layout, alive = self.scores[name], self.scores.layouts.get(name), self.scores.alive(name)
        ranked = ranked.by_magnitude(alive) if by_magnitude else ranked
        pattern = self.plan.pattern
        kept = pattern(ranked, count) if layout is None else by_layout(pattern, layout)(ranked, count)
        return kept if alive is None else kept & alive

    def counts(self, sparsity: float) -> Mapping[str, Count] | None:
        """How many weights each target would keep; None where that would bring weights back, which no pruning does."""
        asked = keep_counts(self.plan.scope, self.scores, sparsity)
        alive = {}
        for name in asked:
            mask = self.scores.alive(name)
            shape = self.scores.shapes[name]
            alive[name] = torch.ones((), dtype=torch.bool, device="cpu").expand(shape) if mask is None else mask
        plan = replace(self.plan, shares=sparsity, request=replace(self.plan.request, sparsity=sparsity))
        try:
            return reached(plan, self.scores, asked, alive, {name: count_true(mask) for name, mask in alive.items()})
        except ValueError:
            return None
