"""Sigma of every replica from estimators that watched stacked weights."""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.ensemble.job import Table
from prunewald.uncertainty import Estimate, Online
from prunewald.uncertainty.base import State
from prunewald.weights import Weight


class Replica(NamedTuple):
    """One model as an estimator sees it."""

    params: Table
    alive: Table
    states: Sequence[State]  # one for each estimator
    optimizer: Any  # an Optimizer, or what has its `state` and `param_groups`


def estimates(recipes: Sequence[Online], replicas: Iterable[Replica]) -> tuple[dict[str, Estimate], ...]:
    """For each estimator, the estimates by parameter name, (R, ...), on the CPU."""
    if not recipes:
        return ()
    each = [[_of_one(recipe, replica, i) for i, recipe in enumerate(recipes)] for replica in replicas]
    return tuple(
        {name: _stacked([tables[i][name] for tables in each]) for name in each[0][i]} for i in range(len(recipes))
    )


def _of_one(recipe: Online, replica: Replica, i: int) -> dict[str, Estimate]:
    weights = [Weight(name, param, replica.alive.get(name)) for name, param in replica.params.items()]
    return {weight.name: recipe.sigma(replica.states[i], weight, replica.optimizer) for weight in weights}


def _stacked(rows: Sequence[Estimate]) -> Estimate:
    frozen = [row.frozen for row in rows if row.frozen is not None]
    return Estimate(
        torch.stack([row.sigma for row in rows]).cpu(),
        torch.stack(frozen).cpu() if len(frozen) == len(rows) else None,
    )


def unstacked(
    params: Table, alive: Table, states: Sequence[State], optimizer: Optimizer, size: int
) -> Iterator[Replica]:
    """Each replica of stacked ones: views of its rows."""
    for r in range(size):
        own = {name: param.detach()[r] for name, param in params.items()}
        groups = [{**optimizer.param_groups[0], "params": list(own.values())}]
        kept = {own[name]: row(optimizer.state.get(param, {}), r) for name, param in params.items()}
        yield Replica(own, row(alive, r), row(list(states), r), SimpleNamespace(state=kept, param_groups=groups))


def row(value: Any, r: int) -> Any:
    """Row r of every tensor in nested dicts and lists; numbers, and tensors that are one, are the same for all."""
    if isinstance(value, Tensor):
        return value[r] if value.dim() else value
    if isinstance(value, dict):
        return {key: row(part, r) for key, part in value.items()}
    return [row(part, r) for part in value] if isinstance(value, list) else value
