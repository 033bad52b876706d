"""Sigma of every replica, from an estimator that watched the stacked weights of all of them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import Estimate, Online, State
from prunewald.core.weights import Weight
from prunewald.ensemble.job import TensorDict
from prunewald.util.trees import mapped

Estimates: TypeAlias = dict[str, Estimate]  # by parameter name


def of_model(estimator: Online, state: State, params: TensorDict, alive: TensorDict, optimizer: Any) -> Estimates:
    """What an estimator says of the parameters of one model."""
    return {each.name: estimator.sigma(state, each, optimizer) for each in _weights(params, alive)}


def of_replicas(
    estimator: Online, state: State, params: TensorDict, alive: TensorDict, optimizer: Optimizer
) -> Estimates:
    """What an estimator says of stacked models, (R, ...): in one go where it can, else replica by replica."""
    found = {each.name: estimator.sigma_rows(state, each, optimizer) for each in _weights(params, alive)}
    known = {name: estimate for name, estimate in found.items() if estimate is not None}
    if len(known) == len(found):
        return known
    replicas = len(next(iter(params.values())))
    each = [_of_replica(estimator, state, params, alive, optimizer, r) for r in range(replicas)]
    return {name: merged([estimates[name] for estimates in each], torch.stack) for name in params}


def _weights(params: TensorDict, alive: TensorDict) -> list[Weight]:
    return [Weight(name, param, alive.get(name)) for name, param in params.items()]


def _of_replica(
    estimator: Online, state: State, params: TensorDict, alive: TensorDict, optimizer: Optimizer, r: int
) -> Estimates:
    """What an estimator says of replica r alone, by views of its rows."""
    own = {name: param.detach()[r] for name, param in params.items()}
    groups = [{**optimizer.param_groups[0], "params": list(own.values())}]
    # An estimator looks the optimizer's state up by the parameter that it is given.
    kept = {own[name]: _row(optimizer.state.get(param, {}), r) for name, param in params.items()}
    # What a state means depends on the optimizer's class, so the one of a row is of that class too; it never steps.
    as_one = object.__new__(type(optimizer))
    vars(as_one).update(state=kept, param_groups=groups)
    return of_model(estimator, _row(state, r), own, _row(alive, r), as_one)


def _row(tree: Any, r: int) -> Any:
    """Row r of every tensor in a tree; what is a single number is the same for all replicas."""
    return mapped(tree, lambda tensor: tensor[r] if tensor.dim() else tensor)


def merged(parts: Sequence[Estimate], join: Callable[[list[Tensor]], Tensor]) -> Estimate:
    """Several estimates as one, by torch.stack or torch.cat; where one does not know the dead weights, none does."""
    dead = [part.dead for part in parts if part.dead is not None]
    return Estimate(join([part.sigma for part in parts]), join(dead) if len(dead) == len(parts) else None)
