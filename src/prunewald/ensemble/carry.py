"""The optimizer's state of every replica, carried from one training to the next.

It is kept by parameter name, then by torch's own key ("exp_avg", "step", ...), with one row for each replica, (R, ...);
a step count, which is one number, becomes (R,).
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.recipes import Recipe
from prunewald.ensemble.start import first_model, per_replica

Carried: TypeAlias = Mapping[str, Mapping[str, Tensor]]


def kept(optimizer: Optimizer, params: TensorDict) -> dict[str, TensorDict]:
    """The tensors that an optimizer keeps of each parameter that it has stepped."""
    tables = {name: optimizer.state.get(param, {}) for name, param in params.items()}
    held = {name: {key: t for key, t in table.items() if isinstance(t, Tensor)} for name, table in tables.items()}
    return {name: table for name, table in held.items() if table}


def restore_(optimizer: Optimizer, params: TensorDict, state: Carried) -> None:
    """Let a new optimizer go on from a copy of a state."""
    packed = optimizer.state_dict()
    packed["state"] = {
        number: {key: _copy(value, param) for key, value in state[name].items()}
        for number, (name, param) in enumerate(params.items())
        if name in state
    }
    optimizer.load_state_dict(packed)  # torch knows on which device a step count has to be


def _copy(value: Tensor, param: Tensor) -> Tensor:
    if value.dim() and value.shape == param.shape:
        return torch.empty_like(param, requires_grad=False).copy_(value)  # in the parameter's layout, as torch's own
    return value.clone()


def unstacked(state: Carried) -> dict[str, TensorDict]:
    """The state of the only replica, as an optimizer of its own holds it: nothing of parameters it never stepped."""
    own = {name: {key: t[0] for key, t in table.items()} for name, table in state.items()}
    return {name: table for name, table in own.items() if "step" not in table or table["step"] != 0}


def stacked(state: Carried, recipe: Recipe) -> dict[str, TensorDict]:
    """The state of all replicas, as one optimizer of stacked parameters holds it: with one step count for all."""
    numbers = {key for key, single in _keys(recipe).items() if single} if state else set()
    return {
        name: {key: _common(name, key, t) if key in numbers else t for key, t in table.items()}
        for name, table in state.items()
    }


def _common(name: str, key: str, values: Tensor) -> Tensor:
    """The one number that all replicas have."""
    low, high = values.aminmax()
    if low != high:
        what = "steps" if key == "step" else key
        raise ValueError(
            f"the replicas have taken {float(low):g} to {float(high):g} {what} with {name!r}, which must be "
            "the same for all that are trained together: train them in calls of their own, or with how='loop'"
        )
    return values[0]


def _keys(recipe: Recipe) -> dict[str, bool]:
    """What an optimizer keeps of a parameter, and whether it is a single number; found by a step with two weights."""
    param = torch.zeros(2, requires_grad=True, device="cpu")
    param.grad = torch.zeros(2, device="cpu")
    optimizer = recipe.build([param])
    optimizer.step()
    return {key: not t.dim() for key, t in kept(optimizer, {"": param}).get("", {}).items()}


def checked(state: Carried, job: Job) -> dict[str, TensorDict]:
    """A state that the caller gives, if it fits the job's model and optimizer, with one row for each replica."""
    if not state:
        return {}
    own = dict(first_model(job).named_parameters())
    if unknown := state.keys() - own.keys():
        raise ValueError(f"optimizer_state: no parameter {sorted(unknown)[0]!r}; the model has {', '.join(own)}")
    keys, number = _keys(job.optimizer), torch.zeros((), device="cpu")
    fitting: dict[str, TensorDict] = {}
    for name, table in state.items():
        if not own[name].requires_grad:
            continue
        if table.keys() != keys.keys():
            raise ValueError(
                f"optimizer_state[{name!r}] has {_listed(table)}, and {job.optimizer} keeps {_listed(keys)}: "
                "train on with the optimizer it comes from, or from result.state with a new one"
            )
        likes = {key: number if single else own[name] for key, single in keys.items()}
        fitting[name] = {
            key: per_replica(f"optimizer_state[{name!r}][{key!r}]", table[key], like, len(job.seeds))
            for key, like in likes.items()
        }
    return fitting


def _listed(keys: Mapping[str, object]) -> str:
    return ", ".join(sorted(keys)) or "nothing"


def joined(states: Sequence[Carried], sizes: Sequence[int]) -> dict[str, TensorDict]:
    """The states of several groups of replicas as one; `sizes` says how many replicas each group has."""
    names = dict.fromkeys(name for state in states for name in state)
    return {name: joined_rows([state.get(name, {}) for state in states], sizes) for name in names}


def joined_rows(tables: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> TensorDict:
    """The tensors of several groups of replicas as one; zeros, as before any step, where only a group lacks one."""
    likes = {name: tensor for table in tables for name, tensor in table.items()}

    def rows(name: str, like: Tensor) -> Tensor:
        pairs = zip(tables, sizes, strict=True)
        return torch.cat([table[name] if name in table else like.new_zeros(n, *like.shape[1:]) for table, n in pairs])

    return {name: rows(name, like) for name, like in likes.items()}
