"""Units, such as channels: one importance for each from the scores of all weights that go with it."""

from collections.abc import Sequence

import torch
from torch import Tensor

_CHUNK = 1 << 20  # so many scores are summed at once, in double precision


def row_sums(scores: Tensor, power: int = 2) -> tuple[Tensor, Tensor]:
    """Of each row the sum of its scores to a power, in double precision, and of how many weights.

    What is pruned (-inf), and what is no target (NaN), does not count. Scores below 0, which only order, have no
    square.
    """
    rows = scores.flatten(1) if scores.dim() > 1 else scores.unsqueeze(1)
    sums, counts = [], []
    for chunk in rows.split(max(1, _CHUNK // max(rows.shape[1], 1))):
        counted = chunk > -torch.inf  # NaN is not
        values = chunk.double()
        values = values.clamp(min=0).square() if power == 2 else values
        sums.append(values.where(counted, 0.0).sum(1))
        counts.append(counted.sum(1).double())
    return torch.cat(sums), torch.cat(counts)


def reduced(found: Sequence[tuple[Tensor, Tensor]], reduction: str = "mean") -> Tensor:
    """One importance of each unit, from the sums and the counts of all that goes with it."""
    device = found[0][0].device
    sums, counts = (torch.stack([one.to(device) for one in column]) for column in zip(*found, strict=True))
    if reduction == "sum":
        return sums.sum(0)
    if reduction == "mean":
        return sums.sum(0) / counts.sum(0).clamp(min=1)
    means = sums / counts.clamp(min=1)
    return means[0] if reduction == "first" else means.amax(0)
