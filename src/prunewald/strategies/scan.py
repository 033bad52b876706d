"""How much does each layer bear? What the model scores against sparsity, one layer at a time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from prunewald.model.slices import Slice
from prunewald.pruner import Pruner
from prunewald.strategies.checks import check_functions, checked_levels
from prunewald.strategies.tabular import Tabular
from prunewald.util.tables import Cells
from prunewald.util.tensors import zero_
from prunewald.util.trees import copied

LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Sensitivity(Tabular):
    """What the model scores with one layer pruned to each level, and the others left alone; prints as a table.

    `layers` has for each layer the score at every one of the `levels`; `dense` is the score with no layer pruned.
    """

    levels: tuple[float, ...]
    dense: float
    layers: dict[str, tuple[float, ...]]
    _left: ClassVar = (0,)

    def _title(self) -> str:
        return f"dense {self.dense:.4f}"

    def _table(self) -> tuple[Cells, Sequence[Cells]]:
        rows = [(name, *(f"{value:.4f}" for value in values)) for name, values in self.layers.items()]
        return ("layer", *(f"{level:.1%}" for level in self.levels)), rows


def sensitivity(pruner: Pruner, evaluate: Callable[[], float], levels: Iterable[float] = LEVELS) -> Sensitivity:
    """Prune one target at a time to each level, without retraining, and evaluate; the model is left as it was.

    `evaluate` gives a number, higher is better; it should put the model into evaluation mode, since batch norms that
    learn in it are not set back. A target that is pruned already scores as it is at every level up to its sparsity.
    """
    check_functions(evaluate=evaluate)
    levels = checked_levels(pruner, levels)
    params = dict(pruner.model.named_parameters())
    # All masks are chosen before any evaluation, whose inputs a statistic such as Wanda's would take in.
    chosen = [(target, [_mask_at(pruner, target, level) for level in levels]) for target in pruner.slices]
    state = copied(pruner.state_dict())
    try:
        dense = float(evaluate())
        layers = {
            target.name: tuple(
                dense if mask is None else _score(params[target.param], mask, evaluate) for mask in masks
            )
            for target, masks in chosen
        }
    finally:
        pruner.load_state_dict(state)
    return Sensitivity(levels, dense, layers)


def _mask_at(pruner: Pruner, target: Slice, level: float) -> Tensor | None:
    """The mask of a parameter with one target in it pruned to a level; None where it is pruned that far already."""
    alive = target.take(pruner.masks[target.param])
    if level <= 1 - int(alive.sum()) / alive.numel():
        return None
    return pruner.choose({target.name: level})[0][target.param]


def _score(param: Tensor, mask: Tensor, evaluate: Callable[[], float]) -> float:
    """What the model scores while one parameter is zero outside its mask."""
    before = param.detach().clone()
    try:
        zero_(param, mask)
        return float(evaluate())
    finally:
        param.detach().copy_(before)
