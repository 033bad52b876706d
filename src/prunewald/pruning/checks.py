"""What the Pruner refuses, and how it says so: the value and name given, and what to do."""

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from prunewald.core.patterns import Element
from prunewald.core.weights import NotYet, Weight
from prunewald.uncertainty import BatchMeans, Estimate, PseudoBootstrap
from prunewald.uncertainty.analytic import Sigmas
from prunewald.util.registry import brief


def check_request(sparsity: object, threshold: object, alpha: object, fdr: object, pattern: object) -> None:
    """Exactly one of a sparsity, a threshold, a level and a false discovery rate: in range, and fit for the pattern."""
    asked = {"sparsity": sparsity, "threshold": threshold, "alpha": alpha, "fdr": fdr}
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) != 1:
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "nothing"
        raise ValueError(f"prune() was given {shown}: give one of {', '.join(asked)}, as in prune(0.9)")
    if sparsity is None and not isinstance(pattern, Element):
        raise ValueError(f"{next(iter(given))} chooses weights one by one, and {pattern!r} groups: give a sparsity")
    if alpha is not None or fdr is not None:
        ((name, level),) = given.items()
        if not isinstance(level, Real) or isinstance(level, bool) or not 0 < float(level) < 1:
            raise ValueError(f"{name} must lie between 0 and 1, not {level!r}")
        return
    if threshold is not None:
        if not isinstance(threshold, Real) or isinstance(threshold, bool) or not math.isfinite(threshold):
            raise ValueError(f"threshold must be a finite number, not {threshold!r}")
        return
    shares = sparsity if isinstance(sparsity, Mapping) else {"": sparsity}
    for name, share in shares.items():
        of = f" for {name!r}" if name else ""
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 <= float(share) < 1:
            raise ValueError(f"sparsity{of} must be at least 0 and below 1 (0.9 prunes 90 %), not {share!r}")


def check_online(uncertainty: object) -> None:
    """An offline estimator needs data, so the Pruner takes what it gives, not the estimator."""
    if hasattr(uncertainty, "estimate") and not hasattr(uncertainty, "update_"):
        name = type(uncertainty).__name__
        raise TypeError(f"{name} estimates from data: pass uncertainty={name}(...).estimate(model, batches, loss)")


def check_params(params: Mapping[str, Tensor], current: Mapping[str, Tensor]) -> None:
    """The parameters must still be those of the model, and finite."""
    for name, param in params.items():
        if current.get(name) is not param:
            raise ValueError(f"{name!r} is not the parameter it was when the Pruner was attached: attach a new Pruner")
        low, high = param.data.aminmax()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"{name!r} has NaN or infinite weights: prune an earlier checkpoint")


def check_sigmas(sigmas: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> None:
    """A sigma the user brings: one for each target, of its shape, not negative."""
    for name, param in params.items():
        if name not in sigmas:
            raise ValueError(
                f"uncertainty has no sigma for {name!r}; it has {sorted(sigmas)}: add it, or ignore={name!r}"
            )
        sigma = torch.as_tensor(sigmas[name])
        if sigma.shape != param.shape:
            raise ValueError(
                f"uncertainty for {name!r} has shape {tuple(sigma.shape)}, the parameter has {tuple(param.shape)}: "
                "give one sigma for each weight"
            )
        if not bool((sigma >= 0).all()):
            told = f"; its diagnosis:\n{sigmas.diagnosis}" if isinstance(sigmas, Sigmas) else ""
            raise ValueError(
                f"uncertainty for {name!r} has NaN or negative entries: a sigma is at least 0. Where nothing is known "
                f"give torch.inf, as by sigma.nan_to_num(nan=torch.inf), or estimate with inverse='damped'{told}"
            )


def check_trained(params: Mapping[str, Tensor], owners: Sequence[Sequence[str]]) -> None:
    """A tensor that cannot have moved has no uncertainty: better an error than a mass pruning."""
    for name, param in params.items():
        if not param.requires_grad:
            raise ValueError(_untrained(name, "does not require gradients"))
        if not any(name in own for own in owners):
            raise ValueError(_untrained(name, "was in no optimizer of this Pruner when it was attached"))


def check_moved(weight: Weight, estimate: Estimate) -> None:
    """The same for a tensor that no gradient reached, unless an earlier pruning cut it off."""
    if weight.alive is None and estimate.dead is not None and bool(estimate.dead.all()):
        raise NotYet(_untrained(weight.name, "got no gradient (or none that its precision can hold)"))


def _untrained(name: str, why: str) -> str:
    return f"{name!r} {why}, so nothing tells how certain it is: ignore={name!r}, or criterion=Magnitude()"


def check_schedule(schedule: Any, pattern: object, uncertainty: object, least: int) -> None:
    """A schedule must be reachable by the pattern, and prunes at many steps, the first not before there is a sigma."""
    if schedule is None:
        return
    if not callable(schedule):
        raise TypeError(f"schedule={schedule!r}: give one such as Cubic(0.9, end=5000), or a function of the step")
    final, most = getattr(schedule, "final", None), getattr(pattern, "sparsity", None)
    if final is not None and most is not None and final > most:
        raise ValueError(f"{schedule!r} ends at {final}, but {pattern!r} prunes {most} and no more: set final={most}")
    if getattr(uncertainty, "total_steps", None) is not None:
        raise ValueError(
            f"{uncertainty!r} collects for one pruning at its total_steps: with a schedule, leave that out"
        )
    if early := [step for step in range(1, least) if schedule(step)]:
        raise ValueError(
            f"{schedule!r} prunes at step {early[0]}, and {uncertainty!r} can tell nothing before step {least}: "
            "begin later"
        )


def least_steps(uncertainty: object) -> int:
    """How many steps an estimator has to see before it can tell anything."""
    if isinstance(uncertainty, BatchMeans):
        return 2 * uncertainty.length
    return 2 * (uncertainty.every or 1) if isinstance(uncertainty, PseudoBootstrap) else 1


def check_pattern(pattern: Any, shapes: Mapping[str, torch.Size]) -> None:
    """A pattern that does not fit a target is refused before any training."""
    for name, shape in shapes.items():
        try:
            getattr(pattern, "check", lambda shape: None)(shape)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from error


def check_saved(state: object) -> None:
    """A saved state must be that of a Pruner."""
    shape: dict[str, type] = {"masks": Mapping, "states": list, "steps": int}
    if not isinstance(state, Mapping) or not shape.keys() <= state.keys():
        held = f"a dict of {sorted(map(str, state))}" if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"not the state of a Pruner: it is {held}, and should be a dict of {', '.join(map(repr, shape))}"
        )
    for key, kind in shape.items():
        if not isinstance(state[key], kind):
            raise ValueError(
                f"not the state of a Pruner: its {key!r} is {type(state[key]).__name__}, and should be {kind.__name__}"
            )


def check_state(
    what: str,
    saved: Any,
    states: Sequence[Mapping[str, Any]],
    owners: Sequence[Sequence[str]],
    params: Mapping[str, Tensor],
) -> None:
    """Saved states must be of the same kind of estimator or statistic, on the same optimizers."""
    if not isinstance(saved, list) or [_keys(one) for one in saved] != [_keys(own) for own in states]:
        held = [_keys(s) for s in saved] if isinstance(saved, list) else type(saved).__name__
        raise ValueError(
            f"the saved {what} states hold {held}, this Pruner's "
            f"{[_keys(s) for s in states]}: make it with the same uncertainty, criterion and optimizers"
        )
    for one, own in zip(saved, owners, strict=False):
        tables = [table for table in _tables(one) if table]
        for table in tables:
            if not table.keys() <= set(own) or table.keys() != tables[0].keys():
                raise ValueError(
                    f"the saved {what} state is of {sorted(table)}, but its optimizer here steps {sorted(own)}: "
                    "give the Pruner the same optimizers in the same order"
                )
            for name, tensor in table.items():
                _check_tensor(what, name, tensor, params)


def check_masks(masks: Mapping[str, Any], params: Mapping[str, Tensor]) -> None:
    """Masks must be of the same parameters, of their shapes, and bool."""
    if masks.keys() != params.keys():
        missing, other = sorted(params.keys() - masks.keys()), sorted(masks.keys() - params.keys())
        raise ValueError(f"the masks are of other parameters: they lack {missing} and have {other} besides")
    for name, mask in masks.items():
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"the mask of {name!r} is {kind}, and should be a bool tensor")
        if mask.shape != params[name].shape:
            raise ValueError(f"the mask of {name!r} has shape {tuple(mask.shape)}, not {tuple(params[name].shape)}")


def _check_tensor(what: str, name: str, tensor: Tensor, params: Mapping[str, Tensor]) -> None:
    if tensor.shape != params[name].shape:
        raise ValueError(
            f"the saved {what} state of {name!r} has shape {tuple(tensor.shape)}, not {tuple(params[name].shape)}"
        )


def _keys(state: object) -> object:
    return sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__


def _tables(state: object) -> Iterator[Mapping[str, Tensor]]:
    """Tensors by parameter name, however deep: every dict that holds nothing but tensors."""
    if isinstance(state, Mapping):
        if all(isinstance(value, Tensor) for value in state.values()):
            yield state
        else:
            state = list(state.values())
    if isinstance(state, list):
        for value in state:
            yield from _tables(value)


def copied(state: Any) -> Any:
    """A deep copy of nested dicts and lists with tensors in them; numpy's numbers become Python's, which files hold."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copied(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(copied, state))
    return state.item() if type(state).__module__ == "numpy" and state.shape == () else state


def describe(uncertainty: object) -> str:
    """How a report names an uncertainty."""
    if isinstance(uncertainty, Mapping):
        return f"a dict of {len(uncertainty)} tensors"
    return "" if uncertainty is None else brief(uncertainty)
