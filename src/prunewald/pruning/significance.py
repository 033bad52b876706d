"""Pruning by significance: which |z| a weight needs to stay, and whether that means what it says."""

from collections.abc import Mapping
from typing import Any

import torch

from prunewald.core.ranking import Scores
from prunewald.statistics.wald import critical_value, discoveries, p_value
from prunewald.uncertainty.analytic import Sigmas


def z_thresholds(
    scores: Scores, *, alpha: float | None, fdr: float | None, df: float | None, together: bool
) -> dict[str, float]:
    """The lowest |z| kept in each tensor: at level alpha, or with a false discovery rate over each or over all."""
    if alpha is not None:
        return dict.fromkeys(scores, critical_value(alpha, df))
    assert fdr is not None
    groups = [list(scores)] if together else [[name] for name in scores]
    found: dict[str, float] = {}
    for names in groups:
        flat = torch.cat([scores[name].score.reshape(-1).cpu() for name in names])
        z = flat[flat > -torch.inf].clamp_(min=0)  # what is pruned already is not tested again
        kept = z[discoveries(p_value(z, df), fdr)]
        found |= dict.fromkeys(names, float(kept.min()) if kept.numel() else torch.inf)
    return found


def honest_label(uncertainty: Any) -> list[str]:
    """A note where p-values are not p-values, because sigma is no standard error."""
    if isinstance(uncertainty, Sigmas):
        return list(uncertainty.notes)
    if getattr(uncertainty, "standard_error", False):
        averaged = hasattr(uncertainty, "average")
        return ["tested: the averaged iterate, which the standard errors are of"] if averaged else []
    if isinstance(uncertainty, Mapping):
        return ["p-values are as good as the sigma that was given: they need standard errors"]
    name = "the scale-free second moment" if uncertainty is None else type(uncertainty).__name__
    return [f"not p-values: sigma from {name} is no standard error, so the level given is nominal only"]
