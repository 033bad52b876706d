"""From a request to masks: how many weights of each target stay, and which."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from prunewald.core.allocation import Allocation, Count
from prunewald.core.patterns import Element, Pattern
from prunewald.core.ranking import Ranked, Scores
from prunewald.model.slices import Slice
from prunewald.model.targets import match
from prunewald.pruning.checks import describe
from prunewald.pruning.report import Report, TensorReport
from prunewald.pruning.scoring import Scorer
from prunewald.uncertainty import SecondMoment
from prunewald.util.registry import brief, name_of

Sparsity: TypeAlias = float | Mapping[str, float]


def keep_counts(scope: Allocation, scores: Scores, sparsity: Sparsity) -> dict[str, Count]:
    """How many weights each part keeps, of one sparsity, or of a dict by part that leaves the others out."""
    if not isinstance(sparsity, Mapping):
        return dict(scope(scores, sparsity))
    return {name: scope(scores.only(name), share)[name] for name, share in sparsity.items()}


def reached(
    pattern: Pattern, asked: Mapping[str, Count], alive: Mapping[str, Tensor], sparsity: Sparsity, *, rising: bool
) -> dict[str, Count]:
    """The counts that whole groups come to, none above what is alive: an error, or with `rising` the present count."""
    nearest = getattr(pattern, "nearest", lambda shape, count: count)
    counts: dict[str, Count] = {name: nearest(alive[name].shape, count) for name, count in asked.items()}
    if not rising:
        _refuse_revival(counts, alive, sparsity)
    return {name: _least(count, _living(alive[name], count)) for name, count in counts.items()}


def _refuse_revival(counts: Mapping[str, Count], alive: Mapping[str, Tensor], sparsity: Sparsity) -> None:
    """Pruning brings no weight back."""
    for name, count in counts.items():
        living = _living(alive[name], count)
        if _total(count) > _total(living):  # a single row may have lost more, and keeps what it has
            size = alive[name].numel()
            raise ValueError(
                f"sparsity {sparsity!r} would bring weights of {name!r} back: it is to keep {_total(count):,} of "
                f"{size:,}, but {size - _total(living):,} are pruned already. Ask for more, or give a dict by layer"
            )


def by_part(
    model: nn.Module, parts: Sequence[Slice], given: Mapping[str, float], what: str = "sparsity"
) -> dict[str, float]:
    """Resolve the keys of a dict: part names, parameter names, modules, globs."""
    names = {part.name for part in parts}
    result: dict[str, float] = {}
    for key, share in given.items():
        meant = match(model, key)
        whole = {part.param for part in meant if part.index is None}
        spelled = {key, *(part.name for part in meant)}
        hit = {part.name for part in parts if part.name in spelled or part.param in whole}
        if not hit:
            raise ValueError(f"{what} for {key!r}: no target of that name; the targets are {sorted(names)}")
        if twice := hit & result.keys():
            raise ValueError(f"{what} for {key!r} names {sorted(twice)} a second time")
        result |= dict.fromkeys(hit, share)
    return result


def select(
    scorer: Scorer,
    pattern: Pattern,
    counts: Mapping[str, Count] | None,
    limits: Mapping[str, float],
    alive: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], list[TensorReport]]:
    """The mask of each part, and the report's rows: by counts, or else all that scores at least its limit."""
    masks, rows = {}, []
    for name, mask in alive.items():
        if counts is not None and _as_it_is(pattern, counts.get(name), mask):
            masks[name] = mask
            rows.append(scorer.untouched(name, mask))
            continue
        stats = scorer.stats(name)
        ranked = scorer.rank(stats)
        keep = ranked.score >= limits[name] if counts is None else _apply(pattern, ranked, counts[name], name)
        if stats.alive is not None:
            keep &= stats.alive  # a block that stays does not bring back what it had lost
        masks[name] = keep
        count = int(torch.count_nonzero(keep)) if counts is None else counts[name]
        rows.append(scorer.row(stats, ranked, keep, pattern, count))
    return masks, rows


def unreached(pattern: Pattern, counts: Mapping[str, Count] | None, rows: Sequence[TensorReport]) -> list[str]:
    """A note where whole groups gave other counts than were asked for."""
    if counts is None:
        return []
    asked, kept = sum(map(_total, counts.values())), sum(row.kept for row in rows if row.name in counts)
    if asked == kept:
        return []
    return [f"{pattern!r} keeps {kept:,} weights, not {asked:,}: the count of each tensor is rounded to whole groups"]


def reported(
    scorer: Scorer,
    rows: Sequence[TensorReport],
    scope: Allocation,
    pattern: Pattern,
    uncertainty: object,
    notes: Sequence[str],
) -> Report:
    """The report of a choice; weights that have a sigma though no uncertainty was given have the optimizer's."""
    sigma = "" if scorer.estimate is None else describe(SecondMoment() if uncertainty is None else uncertainty)
    report = Report(rows, brief(scorer.criterion), sigma, name_of("allocation", scope), pattern=brief(pattern))
    emptied = [f"emptied: {', '.join(report.emptied)} lost all weights, and pass nothing on"] if report.emptied else []
    return replace(report, notes=[*notes, *emptied])


def _as_it_is(pattern: Pattern, count: Count | None, mask: Tensor) -> bool:
    """Whether a part was not asked for, or has the count it is to have; zeros in other places are no pattern."""
    if count is None:
        return True
    return isinstance(pattern, Element) and _total(count) == int(torch.count_nonzero(mask))


def _apply(pattern: Pattern, ranked: Ranked, count: Count, name: str) -> Tensor:
    try:
        return pattern(ranked, count)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from error


def _living(mask: Tensor, like: Count) -> Count:
    """How many are alive, by row where the counts are."""
    if isinstance(like, Tensor):
        return torch.count_nonzero(mask.reshape(like.numel(), -1), dim=1).to(like.device)
    return int(torch.count_nonzero(mask))


def _total(count: Count) -> int:
    return int(count.sum()) if isinstance(count, Tensor) else count


def _least(count: Count, living: Count) -> Count:
    if isinstance(count, Tensor):
        return torch.minimum(count, torch.as_tensor(living))
    return min(count, _total(living))
