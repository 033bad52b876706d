"""Sigma of every replica from estimators that watched stacked weights."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.weights import Weight
from prunewald.ensemble.job import TensorDict
from prunewald.uncertainty import BatchMeans, Estimate, Online, PseudoBootstrap, SecondMoment
from prunewald.uncertainty.base import State

Estimates: TypeAlias = dict[str, Estimate]


def of_model(recipe: Online, state: State, params: TensorDict, alive: TensorDict, optimizer: Any) -> Estimates:
    """What an estimator says of one model, by parameter name."""
    weights = [Weight(name, param, alive.get(name)) for name, param in params.items()]
    return {weight.name: recipe.sigma(state, weight, optimizer) for weight in weights}


def of_replicas(recipe: Online, state: State, params: TensorDict, alive: TensorDict, optimizer: Optimizer) -> Estimates:
    """The same of stacked models, (R, ...): in one go where a weight's sigma does not depend on the other weights."""
    known = type(recipe)  # a subclass may do as it likes
    if known in (PseudoBootstrap, BatchMeans):
        return of_model(recipe, state, params, alive, optimizer)
    if known is SecondMoment and isinstance(recipe, SecondMoment):
        if recipe.standard_error:
            return of_model(recipe, state, params, alive, optimizer)
        errors = of_model(replace(recipe, samples=1, batch_size=1), state, params, alive, optimizer)
        return {name: _scaled(error, params[name].detach(), alive.get(name)) for name, error in errors.items()}
    size = len(next(iter(params.values())))
    each = [_of_row(recipe, state, params, alive, optimizer, r) for r in range(size)]
    return {name: stacked([found[name] for found in each]) for name in each[0]}


def _scaled(error: Estimate, param: Tensor, alive: Tensor | None) -> Estimate:
    """`SecondMoment` without a scale of its own, replica by replica: the median of the living is the layer's spread."""
    assert error.dead is not None
    sigma, weight = error.sigma.reshape(len(param), -1), param.reshape(len(param), -1).double()
    living = torch.ones_like(weight, dtype=torch.bool) if alive is None else alive.reshape(weight.shape)
    moving = living & ~error.dead.reshape(weight.shape)
    count = moving.sum(1, keepdim=True)
    median = sigma.where(moving, torch.inf).sort(1).values.gather(1, (count - 1).clamp(min=0) // 2)
    survivors = living.sum(1, keepdim=True)
    mean = weight.where(living, 0).sum(1, keepdim=True) / survivors
    spread = ((weight - mean).where(living, 0).square().sum(1, keepdim=True) / (survivors - 1)).sqrt()
    scale = torch.where(count < 2, 1.0, spread / median)
    return Estimate((sigma * scale.to(sigma.dtype)).view_as(error.sigma), error.dead)


def _of_row(
    recipe: Online, state: State, params: TensorDict, alive: TensorDict, optimizer: Optimizer, r: int
) -> Estimates:
    """Of replica r, by views of its rows."""
    own = {name: param.detach()[r] for name, param in params.items()}
    groups = [{**optimizer.param_groups[0], "params": list(own.values())}]
    # An estimator looks a parameter's state up by the parameter it is given.
    kept = {own[name]: _row(optimizer.state.get(param, {}), r) for name, param in params.items()}
    as_one = SimpleNamespace(state=kept, param_groups=groups)
    return of_model(recipe, _row(state, r), own, _row(alive, r), as_one)


def _row(value: Any, r: int) -> Any:
    """Row r of every tensor; numbers, and tensors that are one, are the same for all."""
    return mapped(value, lambda tensor: tensor[r] if tensor.dim() else tensor)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested dicts and lists with every tensor in them changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    return [mapped(part, change) for part in value] if isinstance(value, list) else value


def stacked(rows: list[Estimate]) -> Estimate:
    """Estimates of several replicas as one, (R, ...)."""
    dead = [row.dead for row in rows if row.dead is not None]
    whole = torch.stack(dead) if len(dead) == len(rows) else None
    return Estimate(torch.stack([row.sigma for row in rows]), whole)
