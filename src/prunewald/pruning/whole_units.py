"""From scores to masks where units go as a whole from all layers that share them: which of each coupled group stay."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from prunewald.core.patterns import Filter
from prunewald.core.ranking import KnownScores, Ranked, smallest
from prunewald.core.unit_sums import reduced, row_sums
from prunewald.model.groups import Group
from prunewald.pruning.costing import Ledger, without
from prunewald.pruning.describing import scored_row, untouched_row
from prunewald.pruning.grouped import Coupled, living_units
from prunewald.pruning.plan import Plan
from prunewald.pruning.report import TensorReport, UnitReport
from prunewald.pruning.scoring import PlannedScores
from prunewald.util.registry import brief
from prunewald.util.text import some

_SHOWN = 6  # so many names are listed
_FAR = 50  # a group is moved by no more than a unit, or by one in so many
_NOTABLE = 5e-4  # a share further than this from the one asked for is noted
_WORD = {"weights": "weights of the targets", "filters": "units", "parameters": "parameters", "macs": "multiplications"}
_WHOLE = "left whole: the rows of {}"
_REACHED = "{:.2%} of the {} are gone, not {:.2%}: as near as whole units come"
_NO_MORE = "{:.2%} of the {} are gone, not {:.2%}: no more can go, since at least one unit of each group stays"


def select_units(
    plan: Plan, scores: PlannedScores, alive: Mapping[str, Tensor], params: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[TensorReport], list[str], list[UnitReport]]:
    """The mask of each slice, the rows of the report, its notes, and what became of each group.

    `alive` are the weights that may be kept, `params` all parameters of the model. What is a target in part is left
    alone.
    """
    coupled = plan.coupled
    assert coupled is not None
    whole = {name: mask for name, mask in alive.items() if scores.part(name).index is None}
    ranking = _Ranking(coupled, plan, {group.name: living_units(group, whole) for group in coupled.groups})
    ledger = Ledger(coupled, plan.request.of, params, whole)
    search = _Search(coupled, plan, ranking.scores(scores), ranking.living, ledger)
    counts, notes = search.counts()
    kept = without(coupled.groups, search.kept(counts), whole)
    sized = kept
    if not plan.criterion.is_magnitude and ranking.how != "l1":
        by_size = _Search(coupled, plan, ranking.scores(scores, by_size=True), ranking.living, ledger)
        sized = without(coupled.groups, by_size.kept(counts), whole)
    masks, rows = dict(alive), []
    for name, mask in alive.items():
        keep = kept.get(name, mask)
        if torch.equal(keep, mask):
            rows.append(untouched_row(name, mask))
            continue
        living = None if bool(mask.all()) else mask
        rows.append(scored_row(plan, name, scores[name], living, keep, None if sized is kept else (sized[name], keep)))
        masks[name] = keep
    if coupled.whole:
        notes.append(_WHOLE.format(_by_reason(coupled.whole)))
    groups = [UnitReport(group.name, group.units, counts[group.name]) for group in coupled.groups]
    return masks, rows, notes, groups


class _Ranking:
    """What orders the units of each group."""

    def __init__(self, coupled: Coupled, plan: Plan, living: Mapping[str, Tensor]) -> None:
        self._groups, self.how, self.living = coupled.groups, _score_of(plan), living
        self._together = plan.scope.together

    def scores(self, scores: PlannedScores, by_size: bool = False) -> KnownScores:
        """One score for each unit, ties by the mean |w| of what makes it; by |w| alone if wanted."""

        def sized(name: str) -> Ranked:
            weight = scores.weight(name)
            return Ranked(weight.abs(), weight).by_magnitude(scores.alive(name))

        ranked = sized if by_size else scores.__getitem__
        return KnownScores({group.name: self._joint(group, ranked, set(scores)) for group in self._groups})

    def _joint(self, group: Group, ranked: Callable[[str], Ranked], targets: set[str]) -> Ranked:
        scored, sized = [], []
        for member in group.members:
            if member.name not in targets:
                continue
            one = ranked(member.name)
            values = _numbers(one) if self.how == "mean" else one.score
            scored.append(_sums(values, member.axis, member.at, 1 if self.how == "mean" else 2))
            if member.role == "makes":
                sized.append(_sums(one.weight.abs(), member.axis, member.at, 1))
        size = reduced(sized)
        joint, living = size if self.how == "l1" else reduced(scored), self.living[group.name]
        # Means of squares differ by layer, with its fan-in and its depth: one order of all would take whole layers.
        if self._together and (mean := float(joint[living].mean())) > 0:
            joint = joint / mean
        return Ranked(joint.masked_fill(~living, -torch.inf), size)


def _by_reason(whole: Mapping[str, str]) -> str:
    """Names, put together where they are left for one reason."""
    names: dict[str, list[str]] = {}
    for name, why in whole.items():
        names.setdefault(why, []).append(name)
    return some((f"{some(several, _SHOWN)} ({why})" for why, several in names.items()), _SHOWN)


def _score_of(plan: Plan) -> str:
    assert isinstance(plan.pattern, Filter)
    return plan.pattern.score


def _numbers(ranked: Ranked) -> Tensor:
    """Scores, of which those that only order count 0, and those of pruned weights not."""
    order_only = (ranked.score <= torch.finfo(ranked.score.dtype).min) | (ranked.weight == 0)
    if ranked.dead is not None:
        order_only |= ranked.dead & (ranked.score < 0)
    return ranked.score.masked_fill(order_only & (ranked.score > -torch.inf), 0.0)


def _sums(scores: Tensor, axis: int, at: Tensor, power: Literal[1, 2]) -> tuple[Tensor, Tensor]:
    """Of each unit the sum of its scores to a power, and of how many."""
    sums, counts = row_sums(scores.movedim(axis, 0), power)
    return sums.cpu()[at.cpu()].sum(1), counts.cpu()[at.cpu()].sum(1)


class _Search:
    """Finds how many units of each group stay, so that as near as can be to what was asked for is gone."""

    def __init__(
        self, coupled: Coupled, plan: Plan, scores: KnownScores, living: Mapping[str, Tensor], ledger: Ledger
    ) -> None:
        self._coupled, self._plan, self._scores, self._ledger = coupled, plan, scores, ledger
        self._most = {name: int(one.sum()) for name, one in living.items()}

    def kept(self, counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Which units stay where so many do."""
        return {name: ~smallest(ranked, len(ranked.score) - counts[name]) for name, ranked in self._scores.items()}

    def counts(self) -> tuple[dict[str, int], list[str]]:
        """How many units of each group stay, and notes."""
        shares = self._plan.shares
        if isinstance(shares, Mapping):
            return self._by_layer(shares), []
        assert shares is not None
        return self._nearest(shares)

    def _by_layer(self, shares: Mapping[str, float]) -> dict[str, int]:
        """A share of the units that each named layer makes; the others stay."""
        asked: dict[str, float] = {}
        for name, share in shares.items():
            made = [
                g.name for g in self._coupled.groups if any(m.name == name and m.role == "makes" for m in g.members)
            ]
            if not made:
                raise ValueError(f"sparsity {share!r} for {name!r}: its rows stay whole ({self._coupled.whole[name]})")
            for group in made:
                if asked.setdefault(group, share) != share:
                    raise ValueError(
                        f"sparsity {share!r} for {name!r}, and {asked[group]!r} for another layer of its group: the "
                        f"units of {group!r} go from all of them, so give one share"
                    )
        counts = dict(self._most)
        for group, share in asked.items():
            wanted = self._allocated(share)[group]
            if wanted > counts[group] and not self._plan.request.rising:
                raise ValueError(_back(share, f"units of {group!r}"))
            counts[group] = min(wanted, counts[group])
        return counts

    def _allocated(self, share: float) -> dict[str, int]:
        """The counts of the scope for a share of all units; none is emptied."""
        counts: dict[str, int] = {}
        for name, count in self._plan.scope(self._scores, share).items():
            if isinstance(count, Tensor):
                raise ValueError(
                    f"{brief(self._plan.pattern)} keeps whole units, and the counts are by row: choose scope='layer' "
                    "or 'global'"
                )
            counts[name] = max(count, 1)
        return counts

    def _at(self, share: float) -> dict[str, int]:
        """The same, with no unit brought back."""
        return {name: min(count, self._most[name]) for name, count in self._allocated(share).items()}

    def _gone(self, counts: Mapping[str, int]) -> float:
        return self._ledger.gone(self.kept(counts))

    def _nearest(self, wanted: float) -> tuple[dict[str, int], list[str]]:
        """By bisection over the share of units, and then group by group."""
        units, word = sum(self._scores.sizes.values()), _WORD[self._plan.request.of]
        if not units:
            raise ValueError(f"sparsity {wanted!r}: no unit can go; {_WHOLE.format(_by_reason(self._coupled.whole))}")
        low, high = 0, units
        least = self._gone(self._at(0.0))
        if wanted < least - self._step() and not self._plan.request.rising:
            raise ValueError(_back(wanted, f"units: {least:.2%} of the {word} are gone"))
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._gone(self._at(middle / units)) <= wanted else (low, middle)
        found = [self._filled(self._at(side / units), wanted) for side in (low, high)]
        counts = min(found, key=lambda one: abs(self._gone(one) - wanted))
        reached = self._gone(counts)
        if abs(reached - wanted) <= _NOTABLE:
            return counts, []
        text = _NO_MORE if reached < wanted and max(counts.values()) == 1 else _REACHED
        return counts, [text.format(reached, word, wanted)]

    def _step(self) -> float:
        """The largest share that goes with one more unit."""
        gone = self._gone(self._most)
        return max(self._gone(self._most | {name: count - 1}) for name, count in self._most.items()) - gone

    def _filled(self, start: dict[str, int], wanted: float) -> dict[str, int]:
        """From counts that are near to nearer ones, unit by unit.

        Groups of few units take large steps, which others make up for; the one that has moved least, for its size, is
        moved first, none far from where it began, and none beyond the goal but in the last step.
        """
        sizes, counts, gap = self._scores.sizes, dict(start), wanted - self._gone(start)
        step = -1 if gap > 0 else 1
        while abs(gap) > _NOTABLE:
            moves = [n for n in counts if 1 <= counts[n] + step <= self._most[n]]
            moves = [n for n in moves if abs(counts[n] + step - start[n]) <= max(1, sizes[n] // _FAR)]
            beyond: list[tuple[float, str]] = []
            for name in sorted(moves, key=lambda n: abs(counts[n] + step - start[n]) / sizes[n]):
                after = wanted - self._gone(counts | {name: counts[name] + step})
                if after * gap >= 0 and abs(after) < abs(gap):
                    counts, gap = counts | {name: counts[name] + step}, after
                    break
                beyond.append((abs(after), name))
            else:
                if beyond and min(beyond)[0] < abs(gap):
                    name = min(beyond)[1]
                    counts[name] += step
                break
        return counts


def _back(share: float, what: str) -> str:
    return f"sparsity {share!r} would bring back {what} already. Ask for more; after reset() all compete again"
