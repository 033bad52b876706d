"""The planes of |w| against sigma: every weight of a small model, counts in bins for a large one, and how many stay.

A small model comes with what the page needs to choose as the Pruner does, to the last bit; a large one with counts over
the logarithms of |w| and sigma. How many weights an allocation keeps comes with both, at whole percents.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunewald.core.allocation import LAMP
from prunewald.core.base import Allocation, Criterion
from prunewald.core.criteria import MagnitudeUncertainty, Wald
from prunewald.core.weights import Group, WeightStats
from prunewald.pruning.sight import Sight
from prunewald.statistics import wald_test
from prunewald.util import colours
from prunewald.util.registry import brief, name_of
from prunewald.web import bins, encoding, pictures
from prunewald.web.accuracies import Look

EXACT = 20_000  # weights of a model, up to which every one of them is in the page
PERCENTS = tuple(range(100))
_LAMS = (0.0, *(float(f"{10 ** (step / 10):.3g}") for step in range(-30, 31)))
_P_BINS = 20
_SHOWN = 0.9  # the sparsity of a large model's pictures, if it can be reached


@dataclass(frozen=True)
class Rule:
    """The criterion of a plane: tau with its own lambda*, None where that is infinite (magnitude)."""

    lam: float | None
    relative_to: Group | None
    dead_first: bool

    @classmethod
    def of(cls, criterion: Criterion) -> "Rule | None":
        """The rule of a criterion; None where it is none of the family of tau."""
        if isinstance(criterion, MagnitudeUncertainty):
            lam = None if criterion.lam == math.inf else criterion.lam
            return cls(lam, criterion.relative_to, criterion.dead == "first")
        return cls(0.0, "layer", criterion.dead == "first") if isinstance(criterion, Wald) else None

    def spread(self, stats: WeightStats) -> float:
        """What lambda* is multiplied by; 1 for an absolute one."""
        try:
            return 1.0 if self.relative_to is None else stats.spread(self.relative_to)
        except ValueError:  # of a single weight there is none; at lambda* = 0 none is wanted
            return 1.0


def drawn(sight: Sight, rule: Rule, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The planes of all targets, and what the allocation keeps of each at whole percents."""
    plan, sizes = sight.plan, sight.scores.sizes
    exact = sum(sizes.values()) <= EXACT
    single = plan.pattern.single
    levels, kept = _counts(sight) if single else ([], [])
    cells = bins.cells_for(len(sizes))
    shown = kept[levels.index(_SHOWN)] if _SHOWN in levels else [None] * len(sizes)
    known = zip(sight.stats(), shown, strict=True)
    planes = [_plane(sight, stats, rule, cells if not exact else None, count) for stats, count in known]
    said = [*notes, *_caveats(plan.scope, rule)]
    if not single:
        said.append(f"{brief(plan.pattern)} takes weights in groups, so no line parts what stays from what goes")
    return {
        "exact": exact,
        "criterion": brief(plan.criterion),
        "uncertainty": "" if plan.uncertainty is None else brief(plan.uncertainty),
        "look": Look(colours.METHODS[colours.method_of(repr(plan.uncertainty)) or "moment"]).to_dict(),
        "scope": name_of("scope", plan.scope),
        "joint": _joint(plan.scope),
        "by_row": plan.scope is not None and name_of("scope", plan.scope) == "row",
        "standard_error": plan.uncertainty is not None and plan.uncertainty.standard_error,
        "dead_first": rule.dead_first,
        "lam": rule.lam,
        "lams": sorted({*_LAMS, *([] if rule.lam is None else [rule.lam])}),
        "levels": levels,
        "kept": kept,
        "notes": [*said, *dict.fromkeys((*plan.notes, *sight.notes))],
        "planes": planes,
    }


def _joint(scope: Allocation) -> str:
    """Which targets compete in one order, so that their counts change with lambda*."""
    return "all" if scope.together else "layer" if scope.whole_layers else "none"


def _caveats(scope: Allocation, rule: Rule) -> Iterator[str]:
    if isinstance(scope, LAMP) and scope.of == "score":
        own = "magnitude" if rule.lam is None else f"lambda* {rule.lam:g}"
        yield f"how many weights each layer keeps is shown as with {own}, at every place of the slider"


def _counts(sight: Sight) -> tuple[list[float], list[list[int]]]:
    """The sparsities that can be reached from here, whole percents, and what each target keeps at them."""
    levels, kept = [], []
    for percent in PERCENTS:
        found = sight.counts(percent / 100)
        if found is not None:
            levels.append(percent / 100)
            kept.append([int(c.sum()) if isinstance(c, Tensor) else c for c in (found[n] for n in sight.scores)])
    return levels, kept


def _plane(sight: Sight, stats: WeightStats, rule: Rule, cells: bins.Cells | None, shown: int | None) -> dict[str, Any]:
    """One target: its weights, or its bins and pictures of it with `shown` weights kept, and what is said of them."""
    layout = sight.scores.layouts.get(stats.name)
    turn = layout.swap if layout is not None else (lambda tensor: tensor)
    weight, alive = turn(stats.weight), None if stats.alive is None else turn(stats.alive)
    assert stats.sigma is not None
    sigma, dead = turn(stats.sigma), None if stats.dead is None else turn(stats.dead)
    living = torch.ones_like(weight, dtype=torch.bool) if alive is None else alive
    own = {
        "name": stats.name,
        "shape": list(weight.shape),
        "turned": layout is not None,
        "weights": weight.numel(),
        "pruned": int(torch.count_nonzero(~living)),
        "dead_count": None if dead is None else int(torch.count_nonzero(dead & living)),
        "group": sight.scores.layers.get(stats.name, stats.name),
        "spread": rule.spread(stats),
        "p": _p_histogram(sight, turn(sight.tested(stats)), sigma, living if dead is None else living & ~dead),
    }
    if cells is None:
        return own | {"values": _values(weight, sigma, dead, alive)}
    ordered = dead if rule.dead_first else None
    keep, level = (living, None) if shown is None else (turn(sight.keep(stats.name, shown)), _SHOWN)
    own["mask"] = pictures.mask(keep, len(sight.scores)) | {"level": level}
    if stats.name == next(iter(sight.scores)):
        own["image"] = pictures.image(weight, keep)
    return own | {"bins": bins.binned(weight, sigma, ordered, living, cells)}


def _values(weight: Tensor, sigma: Tensor, dead: Tensor | None, alive: Tensor | None) -> dict[str, Any]:
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return {
        "type": "float64" if wide == torch.float64 else "float32",
        "weight": encoding.array(weight.to(wide)),
        "sigma": encoding.array(sigma.to(wide)),
        "dead": None if dead is None else encoding.array(dead),
        "alive": None if alive is None else encoding.array(alive),
    }


def _p_histogram(sight: Sight, weight: Tensor, sigma: Tensor, tested: Tensor) -> list[int] | None:
    """How many p-values lie in each twentieth, of living weights; None where sigma is no standard error."""
    uncertainty = sight.plan.uncertainty
    if uncertainty is None or not uncertainty.standard_error:
        return None
    p = wald_test(weight[tested], sigma[tested], sight.degrees).p.double().cpu()
    return torch.bincount((p * _P_BINS).long().clamp(0, _P_BINS - 1), minlength=_P_BINS).tolist()
