"""What a choice of weights means, in the figures of a report."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from prunewald.core.ranking import Ranked
from prunewald.model.slices import Slice
from prunewald.pruning.plan import Plan
from prunewald.pruning.report import LOSS, NAMED, Report, RowLoss, TensorReport
from prunewald.statistics import rank_correlation
from prunewald.util.registry import brief, name_of
from prunewald.util.tensors import CACHED, count_true
from prunewald.util.text import some

_MOST = 0.9  # a layer is nearly closed where more than this share of its rows is empty
_RARE = 0.05  # what has a smaller chance is not expected
_SAMPLE = 1 << 16  # enough for three digits of a rank correlation


def describe(plan: Plan, rows: Sequence[TensorReport], notes: Sequence[str], losses: Sequence[RowLoss]) -> Report:
    """The report of a pruning: its plan in words, and what became of each slice and of the rows in it."""
    emptied = [row.name for row in rows if not row.kept]
    said = [f"emptied: {', '.join(emptied)} lost all weights, and pass nothing on"] if emptied else []
    if losses:
        shown = some([LOSS.format_map(vars(loss)) for loss in losses], NAMED)
        said.append(f"output rows with no weight left: {shown}; scope='row' keeps a weight in each")
    return Report(
        rows,
        brief(plan.criterion),
        "" if plan.uncertainty is None else brief(plan.uncertainty),
        name_of("scope", plan.scope),
        [*notes, *said],
        pattern=brief(plan.pattern),
        lost_rows=losses,
    )


def lost_rows(model: nn.Module, changes: Iterable[tuple[Slice, Tensor, Tensor, Tensor]]) -> list[RowLoss]:
    """Which parameters lost output rows: given are slices, each with its weights and its masks before and after.

    A row that was zero before is nothing new, and where all rows are empty the tensor is. Of a part of a parameter it
    is not known which axis the outputs are on.
    """
    matrices = [name for name, param in model.named_parameters() if param.dim() > 1]
    losses = []
    for part, weight, alive, keep in changes:
        if part.index is not None or keep.dim() < 2 or keep is alive or not keep.numel():
            continue
        after = keep if part.layout is None else part.layout.swap(keep)
        filled = after.flatten(1).view(torch.uint8).amax(1) > 0  # many times faster than any(1)
        if bool(filled.all()):
            continue
        before = alive & (weight != 0)
        before = before if part.layout is None else part.layout.swap(before)
        rows, empty, kept = len(filled), *(int(torch.count_nonzero(mask)) for mask in (~filled, after))
        lost = int((before.flatten(1).any(1) & ~filled).sum())
        if lost and kept:
            # The share of rows that would be empty if the weights that go were drawn evenly.
            chance = (1 - kept / after.numel()) ** (after.numel() // rows)
            expected = chance if empty > _MOST * rows else rows * chance if part.name == matrices[-1] else 1.0
            losses.append(RowLoss(part.name, lost, empty, rows, grave=expected < _RARE))
    return losses


def untouched_row(name: str, keep: Tensor) -> TensorReport:
    """The row of a slice that a pruning leaves as it is, and that needs no score for it."""
    return TensorReport(name, tuple(keep.shape), keep.numel(), count_true(keep), None, None, torch.nan, 1.0)


def scored_row(
    plan: Plan, name: str, ranked: Ranked, alive: Tensor | None, keep: Tensor, by_size: tuple[Tensor, Tensor] | None
) -> TensorReport:
    """The row of a slice of which `keep` stays; `alive` is its mask before.

    `by_size` is what would stay by magnitude and what stays, in all rows or some; None where it goes by magnitude.
    """
    other, stays = (keep, keep) if by_size is None else by_size
    kept, size = int(torch.count_nonzero(keep)), keep.numel()
    living = size if alive is None else max(int(torch.count_nonzero(alive)), 1)
    shown = kept if stays is keep else int(torch.count_nonzero(stays))
    dead = ranked.dead if ranked.dead is None or alive is None else ranked.dead & alive
    return TensorReport(
        name=name,
        shape=tuple(keep.shape),
        weights=size,
        kept=kept,
        threshold=_threshold(ranked, keep) if plan.pattern.single and 0 < kept < size else None,
        dead=None if dead is None else count_true(dead) / living,
        correlation=1.0 if by_size is None else _correlation(ranked),
        overlap=1.0 if by_size is None else int(torch.count_nonzero(other & stays)) / max(shown, 1),
    )


def _threshold(ranked: Ranked, keep: Tensor) -> float:
    """The lowest score kept; dead weights and zeros, below zero only to be ordered, count as 0."""
    score, weight = ranked.score, ranked.weight
    limits, found = torch.finfo(score.dtype), []
    # By a sum with a wall: torch takes several times longer to choose, or to pick them out.
    for piece, stays in zip(score.reshape(-1).split(CACHED), keep.reshape(-1).split(CACHED), strict=True):
        inside = stays.to(piece.dtype)
        low = piece.clamp(min=limits.min).mul_(inside)
        found.append(low.add_(inside.sub_(1).mul_(-limits.max)).min())
    lowest = float(torch.stack(found).min())
    if lowest <= torch.finfo(score.dtype).min:  # a pattern may keep a zero among its neighbours
        lowest = min(0.0, float(score[keep & (weight != 0)].min())) if weight[keep].any() else 0.0
    return lowest if ranked.dead is None else max(lowest, 0.0)


def _correlation(ranked: Ranked) -> float:
    """Spearman's rank correlation of score and |w|, over evenly spread weights."""
    step = max(1, ranked.weight.numel() // _SAMPLE)
    score, weight = ranked.score.reshape(-1)[::step], ranked.weight.reshape(-1)[::step]
    living = score > torch.finfo(score.dtype).min
    return rank_correlation(score[living], weight[living].abs())
