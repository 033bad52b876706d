"""From scores to masks: how many weights of each slice stay, and which."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prunewald.core.base import Allocation, Pattern
from prunewald.core.ranking import Count, Scores
from prunewald.pruning.describing import scored_row, untouched_row
from prunewald.pruning.plan import Plan, Sparsity
from prunewald.pruning.report import TensorReport
from prunewald.pruning.significance import z_thresholds
from prunewald.pruning.watching import Watcher


def keep_counts(scope: Allocation, scores: Scores, shares: Sparsity) -> dict[str, Count]:
    """How many weights each slice keeps, of one sparsity, or of a dict by slice that leaves the others out."""
    if not isinstance(shares, Mapping):
        return dict(scope(scores, shares))
    return {name: scope(scores.only(name), share)[name] for name, share in shares.items()}


def select(
    plan: Plan, scores: Scores, alive: Mapping[str, Tensor], watcher: Watcher
) -> tuple[dict[str, Tensor], list[TensorReport], list[str]]:
    """The mask of each slice, the rows of the report, and its notes. `alive` are the weights that may be kept."""
    if plan.shares is None:
        return *_above(plan, scores, alive, _limits(plan, scores, watcher)), []
    asked = keep_counts(plan.scope, scores, plan.shares)
    counts = _reached(plan, asked, alive)
    masks, rows = {}, []
    for name, mask in alive.items():
        if name not in counts or _has_it(plan.pattern, counts[name], mask):
            masks[name] = mask
            rows.append(untouched_row(name, mask))
            continue
        ranked = scores[name]
        try:
            keep = plan.pattern(ranked, counts[name])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
        masks[name] = keep.logical_and_(mask)  # a block that stays does not bring back what it had lost
        rows.append(scored_row(plan, name, ranked, mask, masks[name], counts[name]))
    return masks, rows, _unreached(plan.pattern, asked, rows)


def _above(
    plan: Plan, scores: Scores, alive: Mapping[str, Tensor], limits: Mapping[str, float]
) -> tuple[dict[str, Tensor], list[TensorReport]]:
    """Keep all that scores at least its limit."""
    masks, rows = {}, []
    for name, mask in alive.items():
        ranked = scores[name]
        masks[name] = (ranked.score >= limits[name]).logical_and_(mask)
        rows.append(scored_row(plan, name, ranked, mask, masks[name], int(torch.count_nonzero(masks[name]))))
    return masks, rows


def _limits(plan: Plan, scores: Scores, watcher: Watcher) -> dict[str, float]:
    """The lowest score kept in each slice, by a threshold or by a Wald test."""
    asked = plan.request
    if not asked.tests or plan.uncertainty is None:
        return dict.fromkeys(scores, asked.threshold or 0.0)
    degrees = watcher.degrees(plan.uncertainty)
    return z_thresholds(scores, alpha=asked.alpha, fdr=asked.fdr, df=degrees, together=plan.scope.together)


def _reached(plan: Plan, asked: Mapping[str, Count], alive: Mapping[str, Tensor]) -> dict[str, Count]:
    """The counts that whole groups come to, none above what is alive, since pruning brings no weight back."""
    counts: dict[str, Count] = {}
    for name, count in asked.items():
        nearest = plan.pattern.nearest(alive[name].shape, count)
        living = _living(alive[name], nearest)
        wanted, left = _total(nearest), _total(living)
        if wanted > left and not plan.request.rising:  # a single row may have lost more, and keeps what it has
            size = alive[name].numel()
            raise ValueError(
                f"sparsity {plan.request.sparsity!r} would bring weights of {name!r} back: it is to keep {wanted:,} of "
                f"{size:,}, but {size - left:,} are pruned already. Ask for more, or give a dict by layer"
            )
        counts[name] = (
            torch.minimum(nearest, torch.as_tensor(living)) if isinstance(nearest, Tensor) else min(wanted, left)
        )
    return counts


def _has_it(pattern: Pattern, count: Count, mask: Tensor) -> bool:
    """Whether a slice has the count it is to have; of a pattern, zeros in other places are none."""
    return pattern.single and _total(count) == int(torch.count_nonzero(mask))


def _unreached(pattern: Pattern, asked: Mapping[str, Count], rows: Sequence[TensorReport]) -> list[str]:
    """A note where whole groups gave other counts than were asked for."""
    wanted, kept = sum(map(_total, asked.values())), sum(row.kept for row in rows if row.name in asked)
    if wanted == kept:
        return []
    return [f"{pattern!r} keeps {kept:,} weights, not {wanted:,}: the count of each tensor is rounded to whole groups"]


def _living(mask: Tensor, like: Count) -> Count:
    """How many are alive, by row where the counts are."""
    if isinstance(like, Tensor):
        return torch.count_nonzero(mask.reshape(like.numel(), -1), dim=1).to(like.device)
    return int(torch.count_nonzero(mask))


def _total(count: Count) -> int:
    return int(count.sum()) if isinstance(count, Tensor) else count
