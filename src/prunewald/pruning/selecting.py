"""From scores to masks: how many weights of each slice stay, and which."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from prunewald.core.base import Allocation, Pattern
from prunewald.core.patterns import by_layout
from prunewald.core.ranking import Count, Ranked, Scores
from prunewald.pruning.describing import scored_row, untouched_row
from prunewald.pruning.plan import Plan, Sparsity
from prunewald.pruning.report import TensorReport
from prunewald.pruning.significance import z_thresholds
from prunewald.util.tensors import count_true

_ROWS_OF = 1 << 18  # rows of about so many weights tell an overlap
_NOTABLE = 0.005  # a sparsity further than this from the one asked for is noted


def keep_counts(scope: Allocation, scores: Scores, shares: Sparsity) -> dict[str, Count]:
    """How many weights each slice keeps, of one sparsity, or of a dict by slice that leaves the others out."""
    if not isinstance(shares, Mapping):
        return dict(scope(scores, shares))
    counts: dict[str, Count] = {}
    for layer in scores.only(*shares).by_layer():
        for share in {shares[name] for name in layer}:
            counts |= scope(layer.only(*(name for name in layer if shares[name] == share)), share)
    return counts


def select(
    plan: Plan, scores: Scores, alive: Mapping[str, Tensor], degrees: float | None
) -> tuple[dict[str, Tensor], list[TensorReport], list[str]]:
    """The mask of each slice, the rows of the report, and its notes.

    `alive` are the weights that may be kept, `degrees` the degrees of freedom of a Wald test.
    """
    if plan.shares is None:
        return *_by_limit(plan, scores, alive, _limits(plan, scores, degrees)), []
    asked = keep_counts(plan.scope, scores, plan.shares)
    left = {name: count_true(mask) for name, mask in alive.items()}
    counts, notes = reached(plan, scores, asked, alive, left), _rounded(plan.shares, scores.sizes, asked)
    masks, rows = _by_count(plan, scores, alive, left, counts)
    return masks, rows, notes if plan.pattern.single else [*notes, *_unreached(plan.pattern, asked, rows)]


def _by_count(
    plan: Plan,
    scores: Scores,
    alive: Mapping[str, Tensor],
    left: Mapping[str, int],
    counts: Mapping[str, Count],
) -> tuple[dict[str, Tensor], list[TensorReport]]:
    """Keep the count of each slice; one without a count, or that has its count already, stays as it is."""
    masks, rows = {}, []
    # Memory for all masks before anything else is computed: one that took the place of a larger tensor would leave a
    # hole too small for the next of these, and a process would grow with every layer by much more than its mask.
    room = {name: torch.empty(mask.shape, dtype=torch.bool, device=mask.device) for name, mask in alive.items()}
    for name, mask in alive.items():
        count, before = counts.get(name), left[name]
        total = int(count.sum()) if isinstance(count, Tensor) else count
        # To a pattern of groups, zeros in other places are no pattern: it chooses anew.
        if count is None or (plan.pattern.single and total == before):
            masks[name] = mask
            rows.append(untouched_row(name, mask))
            continue
        ranked, living, layout = scores[name], None if before == mask.numel() else mask, scores.layouts.get(name)
        choose = plan.pattern if layout is None else by_layout(plan.pattern, layout)
        try:
            keep = choose(ranked, count)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error
        if living is not None:
            keep &= living  # a block that stays does not bring back what it had lost
        by_size = None
        if not plan.criterion.is_magnitude:
            sized, asked, stays = ranked.by_magnitude(living), count, keep
            if layout is None and isinstance(count, Tensor):
                sized, asked, stays = _some_rows(sized, count, keep)
            by_size = choose(sized, asked), stays
        rows.append(scored_row(plan, name, ranked, living, keep, by_size))
        masks[name] = room.pop(name).copy_(keep)
    return masks, rows


def _some_rows(sized: Ranked, count: Tensor, keep: Tensor) -> tuple[Ranked, Tensor, Tensor]:
    """Evenly spread rows of a large tensor, each of which has its own count, so that they can be looked at alone."""
    step = max(1, keep.numel() // _ROWS_OF) if keep.dim() > 1 else 1
    return Ranked(sized.score[::step], sized.weight[::step]), count[::step], keep[::step]


def _by_limit(
    plan: Plan, scores: Scores, alive: Mapping[str, Tensor], limits: Mapping[str, float]
) -> tuple[dict[str, Tensor], list[TensorReport]]:
    """Keep all that scores at least its limit; a slice without one stays as it is."""
    masks, rows = {}, []
    for name, mask in alive.items():
        if name not in limits:
            masks[name] = mask
            rows.append(untouched_row(name, mask))
            continue
        ranked, living = scores[name], None if count_true(mask) == mask.numel() else mask
        keep = (ranked.score >= limits[name]).logical_and_(mask)
        count = int(torch.count_nonzero(keep))
        by_size = None
        if not plan.criterion.is_magnitude:
            by_size = plan.pattern(ranked.by_magnitude(living), count), keep
        masks[name] = keep
        rows.append(scored_row(plan, name, ranked, living, keep, by_size))
    return masks, rows


def _limits(plan: Plan, scores: Scores, degrees: float | None) -> dict[str, float]:
    """The lowest score kept in each slice that is meant, by a threshold, in units of a std, or by a Wald test."""
    asked, given = plan.request, plan.limits
    if given is None:
        return z_thresholds(scores, alpha=asked.alpha, fdr=asked.fdr, df=degrees, together=plan.scope.together)
    limits = dict(given) if isinstance(given, Mapping) else dict.fromkeys(scores, given)
    if asked.quality is None:
        return limits
    return {name: quality * scores.spread(name) for name, quality in limits.items()}


def reached(
    plan: Plan, scores: Scores, asked: Mapping[str, Count], alive: Mapping[str, Tensor], left: Mapping[str, int]
) -> dict[str, Count]:
    """The counts that whole groups come to, none above what is alive, since pruning brings no weight back.

    `left` is how many weights of each slice are `alive`.
    """
    counts: dict[str, Count] = {}
    for name, wanted in asked.items():
        layout = scores.layouts.get(name)
        mask = alive[name] if layout is None else layout.swap(alive[name])
        count = wanted if plan.pattern.single else plan.pattern.nearest(mask.shape, wanted)
        total = int(count.sum()) if isinstance(count, Tensor) else count
        if total > left[name] and not plan.request.rising:
            raise ValueError(
                f"sparsity {plan.request.sparsity!r} would bring weights of {name!r} back: it is to keep {total:,} of "
                f"{mask.numel():,}, but {mask.numel() - left[name]:,} are pruned already. Ask for more, or by "
                "layer; after reset() all weights compete again"
            )
        # A single row may have lost more than it is to lose now, and keeps what it has.
        counts[name] = _least_by_row(count, mask) if isinstance(count, Tensor) else min(total, left[name])
    return counts


def _least_by_row(count: Tensor, mask: Tensor) -> Tensor:
    if count_true(mask) == mask.numel():
        return count
    return torch.minimum(count, mask.reshape(len(count), -1).sum(1).to(count.device))


def _rounded(shares: Sparsity, sizes: Mapping[str, int], counts: Mapping[str, Count]) -> list[str]:
    """A note where the counts of small tensors or rows, rounded one by one, add up to another sparsity."""
    total = sum(sizes[name] for name in counts)
    given = shares if isinstance(shares, Mapping) else dict.fromkeys(counts, shares)
    asked = sum(share * sizes[name] for name, share in given.items()) / total
    kept = sum(int(count.sum()) if isinstance(count, Tensor) else count for count in counts.values())
    if abs(1 - kept / total - asked) <= _NOTABLE:
        return []
    return [
        f"{1 - kept / total:.2%} are pruned, not {asked:.2%}: the count of each tensor (or row) is rounded, and at "
        "least one weight stays; scope='global' rounds all together"
    ]


def _unreached(pattern: Pattern, asked: Mapping[str, Count], rows: Sequence[TensorReport]) -> list[str]:
    """A note where whole groups gave other counts than were asked for."""
    wanted = sum(int(count.sum()) if isinstance(count, Tensor) else count for count in asked.values())
    kept = sum(row.kept for row in rows if row.name in asked)
    if wanted == kept:
        return []
    return [f"{pattern!r} keeps {kept:,} weights, not {wanted:,}: the count of each tensor is rounded to whole groups"]
