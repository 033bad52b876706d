"""Pruning by significance: which |z| a weight needs to stay."""

import torch

from prunewald.core.ranking import Scores
from prunewald.statistics import critical_value, discoveries, p_value


def z_thresholds(
    scores: Scores, *, alpha: float | None, fdr: float | None, df: float | None, together: bool
) -> dict[str, float]:
    """The lowest |z| kept in each tensor: at level alpha, or with a false discovery rate over each layer or all."""
    if alpha is not None:
        return dict.fromkeys(scores, critical_value(alpha, df))
    assert fdr is not None
    groups = [scores] if together else scores.by_layer()
    found: dict[str, float] = {}
    for names in groups:
        flat = torch.cat([scores[name].score.reshape(-1).cpu() for name in names])
        z = flat[flat > -torch.inf].clamp_(min=0)  # what is pruned already is not tested again
        kept = z[discoveries(p_value(z, df), fdr)]
        found |= dict.fromkeys(names, float(kept.min()) if kept.numel() else torch.inf)
    return found
