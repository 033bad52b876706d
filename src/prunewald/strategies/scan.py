"""How much does each layer bear? Accuracy against sparsity, one layer at a time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from prunewald.model.slices import Slice
from prunewald.pruner import Pruner
from prunewald.strategies.checks import check_functions, checked_levels
from prunewald.util.tensors import zero_
from prunewald.util.trees import copied

LEVELS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Sensitivity:
    """What the model scores with one layer pruned to each level, and the others left alone; prints as a table."""

    levels: tuple[float, ...]
    dense: float
    layers: dict[str, tuple[float, ...]]

    def __str__(self) -> str:
        width = max(map(len, ["dense", *self.layers]))
        head = f"{'layer':{width}}  " + "  ".join(f"{level:7.1%}" for level in self.levels)
        lines = [f"{n:{width}}  " + "  ".join(f"{v:7.4f}" for v in values) for n, values in self.layers.items()]
        return "\n".join([f"dense {self.dense:.4f}", head, "-" * len(head), *lines])


def sensitivity(pruner: Pruner, evaluate: Callable[[], float], levels: Iterable[float] = LEVELS) -> Sensitivity:
    """Prune one target at a time to each level, without retraining, and evaluate; the model is left as it was.

    `evaluate` gives a number, higher is better; it should put the model into evaluation mode, since batch norms that
    learn in it are not set back. Of a target that is pruned already, only higher levels change anything.
    """
    check_functions(evaluate=evaluate)
    levels = checked_levels(pruner, levels)
    params = dict(pruner.model.named_parameters())
    # All are chosen first: a statistic of inputs, as Wanda's, sees those of the evaluation too.
    chosen = [(part, [_chosen(pruner, part, level) for level in levels]) for part in pruner.slices]
    state = copied(pruner.state_dict())
    try:
        dense = float(evaluate())
        layers = {
            part.name: tuple(dense if mask is None else _with(params[part.param], mask, evaluate) for mask in masks)
            for part, masks in chosen
        }
    finally:
        pruner.load_state_dict(state)
    return Sensitivity(levels, dense, layers)


def _chosen(pruner: Pruner, part: Slice, level: float) -> Tensor | None:
    """The mask of the parameter with one part pruned to a level; None where it is already."""
    alive = part.take(pruner.masks[part.param])
    if level <= 1 - int(alive.sum()) / alive.numel():
        return None
    return pruner.choose({part.name: level})[0][part.param]


def _with(param: Tensor, mask: Tensor, evaluate: Callable[[], float]) -> float:
    before = param.detach().clone()
    try:
        zero_(param, mask)
        return float(evaluate())
    finally:
        param.detach().copy_(before)
