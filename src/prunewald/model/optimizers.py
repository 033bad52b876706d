"""What the state of an optimizer means for a weight: second moments, first moments, skipped steps, master weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.util.tensors import accumulator, zero_

# State that moves a weight though its gradient is zero. Second moments stay where they are: zeroed, they would give a
# weight that comes back a kick of several learning rates.
_FIRST_ORDER = ("exp_avg", "momentum_buffer", "grad_avg", "prev", "ax")
_FACTORED = ("row_var", "col_var", "exp_avg_sq_row", "exp_avg_sq_col")


def group_of(optimizer: Optimizer, param: Tensor) -> dict[str, Any] | None:
    """The parameter group a parameter is in, if any."""
    return next((group for group in optimizer.param_groups if any(p is param for p in group["params"])), None)


def step_taken(optimizer: Optimizer | None) -> Tensor | None:
    """1 or 0, on the device, where a fused optimizer under GradScaler may have skipped its step; None: it stepped."""
    found_inf = getattr(optimizer, "found_inf", None)
    return None if found_inf is None else (found_inf == 0).to(torch.int64).reshape(())


def master(optimizer: Optimizer | None, param: Tensor) -> Tensor:
    """The full-precision copy that some optimizers keep of a low-precision parameter, else the parameter itself."""
    kept = {} if optimizer is None else optimizer.state.get(param, {})
    copy = kept.get("master_param")
    return copy if isinstance(copy, Tensor) and copy.shape == param.shape else param.detach()


def mean_square_gradient(optimizer: Optimizer | None, param: Tensor) -> Tensor | None:
    """The mean squared gradient an optimizer keeps for a parameter, without its start-up bias; None if it keeps none.

    The Adam family, RMSprop, Adadelta and Adagrad do; AMSGrad's running maximum is not a mean and stays unused.
    """
    if optimizer is None or not (state := optimizer.state.get(param)):
        return None
    group = group_of(optimizer, param)
    assert group is not None
    steps = float(state.get("step", group.get("step", 0)))  # some optimizers count them by group
    if not steps:
        return None
    if "exp_avg_sq" in state and "betas" in group:
        average, decay = state["exp_avg_sq"], group["betas"][1]
    elif "square_avg" in state:
        average, decay = state["square_avg"], group["alpha"] if "alpha" in group else group["rho"]
    elif "sum" in state and "initial_accumulator_value" in group:
        total: Tensor = state["sum"].detach().to(accumulator(param)) - group["initial_accumulator_value"]
        return total.clamp_(min=0).div_(steps)
    else:
        return None
    wide = torch.float64 if average.dtype == torch.float64 else torch.float32
    unbiased: Tensor = average.detach().to(wide) / (1 - decay**steps)
    return unbiased


def keeps_mean_square(optimizer: Optimizer | None, param: Tensor) -> bool:
    """Whether the optimizer keeps a mean squared gradient of a parameter, without computing it.

    It is there from the first step on, for Adagrad before it too, but with nothing in it.
    """
    state = {} if optimizer is None else optimizer.state.get(param, {})
    if optimizer is None or not any(key in state for key in ("exp_avg_sq", "square_avg", "sum")):
        return False
    return "step" in state or any("step" in group for group in optimizer.param_groups)


def is_factored(optimizer: Optimizer | None, param: Tensor) -> bool:
    """Whether the optimizer keeps only row and column means of the second moment, as Adafactor does."""
    if optimizer is None:
        return False
    state = optimizer.state.get(param, {})
    return type(optimizer).__name__ == "Adafactor" or any(key in state for key in _FACTORED)


def with_closures(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a step pre-hook returns so that the closure given to step() is wrapped; None where none was given."""
    if not any(map(callable, (*args, *kwargs.values()))):
        return None
    own = [wrap(a) if callable(a) else a for a in args]
    return tuple(own), {key: wrap(a) if callable(a) else a for key, a in kwargs.items()}


def forget_(optimizer: Optimizer, param: Tensor, alive: Tensor) -> None:
    """Clear, at pruned places, what would move a weight without a gradient."""
    state = optimizer.state.get(param, {})
    for key in _FIRST_ORDER:
        if isinstance(value := state.get(key), Tensor) and value.shape == alive.shape:
            zero_(value, alive.to(value.device))
    if isinstance(size := state.get("step_size"), Tensor) and size.shape == alive.shape:
        group = group_of(optimizer, param)
        assert group is not None
        size.masked_fill_(~alive.to(size.device), float(group["lr"]))


def forget_history_(optimizer: Optimizer) -> None:
    """Drop the curvature pairs of LBFGS: they were seen with other weights free."""
    for state in optimizer.state.values():
        if "old_dirs" in state:
            state.clear()


def as_list(given: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """One optimizer, several, or none, as a list with each once."""
    if given is None:
        return []
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, Optimizer) else [given]
    if not all(isinstance(one, Optimizer) for one in several):
        raise TypeError(
            f"optimizer={repr(given)[:200]}: give a torch.optim.Optimizer, a list of them, or None; "
            "a sparsity is given to prune(), as in Pruner(model, optimizer).prune(0.9)"
        )
    return list({id(one): one for one in several}.values())


def owned(params: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> list[list[str]]:
    """Which parameters each optimizer steps; without optimizers, all of them belong to the user's own step."""
    held = [{id(p) for group in o.param_groups for p in group["params"]} for o in optimizers]
    if not held:
        return [list(params)]
    return [[name for name, p in params.items() if id(p) in own] for own in held]
