"""What the Pruner refuses, and how it says so: the value and name given, and what to do."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from torch import Tensor

from prunewald.registry import brief
from prunewald.uncertainty import Estimate
from prunewald.weights import Weight


def check_request(sparsity: object, threshold: object) -> None:
    """Exactly one of a sparsity and a threshold, and in range."""
    if (sparsity is None) == (threshold is None):
        raise ValueError(f"sparsity={sparsity!r}, threshold={threshold!r}: give one of them, as in prune(0.9)")
    if threshold is not None:
        if not isinstance(threshold, Real) or threshold != threshold:
            raise ValueError(f"threshold must be a number, not {threshold!r}")
        return
    shares = sparsity if isinstance(sparsity, Mapping) else {"": sparsity}
    for name, share in shares.items():
        of = f" for {name!r}" if name else ""
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 <= float(share) < 1:
            raise ValueError(f"sparsity{of} must be at least 0 and below 1 (0.9 prunes 90 %), not {share!r}")


def check_sigmas(sigmas: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> None:
    """A sigma the user brings: one for each target, of its shape, not negative."""
    for name, param in params.items():
        if name not in sigmas:
            raise ValueError(
                f"uncertainty has no sigma for {name!r}; it has {sorted(sigmas)}: add it, or ignore={name!r}"
            )
        sigma = sigmas[name]
        if sigma.shape != param.shape:
            raise ValueError(
                f"uncertainty for {name!r} has shape {tuple(sigma.shape)}, the parameter has {tuple(param.shape)}"
            )
        if not bool((sigma >= 0).all()):
            raise ValueError(
                f"uncertainty for {name!r} has NaN or negative entries: a sigma is at least 0 (inf: unknown)"
            )


def check_trained(params: Mapping[str, Tensor], owners: Sequence[set[str]]) -> None:
    """A tensor that cannot have moved has no uncertainty: better an error than a mass pruning."""
    for name, param in params.items():
        if not param.requires_grad:
            raise ValueError(_untrained(name, "does not require gradients"))
        if not any(name in own for own in owners):
            raise ValueError(_untrained(name, "is in no optimizer that this Pruner was given"))


def check_moved(weight: Weight, estimate: Estimate) -> None:
    """The same for a tensor that no gradient reached."""
    if estimate.frozen is None:
        return
    frozen = estimate.frozen if weight.pruned is None else estimate.frozen | weight.pruned
    if bool(frozen.all()):
        raise ValueError(_untrained(weight.name, "got no gradient while it was watched"))


def _untrained(name: str, why: str) -> str:
    return f"{name!r} {why}, so nothing tells how certain it is: ignore={name!r}, or criterion=Magnitude()"


def check_state(state: Mapping[str, Any], params: Mapping[str, Tensor], states: Sequence[Mapping[str, Any]]) -> None:
    """A saved state must be of the same parameters and the same kind of estimator."""
    if not {"masks", "states"} <= state.keys():
        raise ValueError(f"not the state of a Pruner: it has {sorted(state)}, not 'masks' and 'states'")
    masks = state["masks"]
    if masks.keys() != params.keys():
        missing, other = sorted(params.keys() - masks.keys()), sorted(masks.keys() - params.keys())
        raise ValueError(f"the saved state is of other parameters: it lacks {missing} and has {other} besides")
    for name, mask in masks.items():
        if mask.shape != params[name].shape:
            raise ValueError(
                f"the saved mask of {name!r} has shape {tuple(mask.shape)}, not {tuple(params[name].shape)}"
            )
    if [sorted(saved) for saved in state["states"]] != [sorted(own) for own in states]:
        raise ValueError(
            f"the saved estimator states hold {[sorted(s) for s in state['states']]}, this Pruner's "
            f"{[sorted(s) for s in states]}: make it with the same uncertainty and optimizers"
        )


def copied(state: Any) -> Any:
    """A deep copy of nested dicts and lists with tensors in them."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copied(value) for key, value in state.items()}
    return [copied(value) for value in state] if isinstance(state, list) else state


def describe(uncertainty: object) -> str:
    """How a report names an uncertainty."""
    if isinstance(uncertainty, Mapping):
        return f"a dict of {len(uncertainty)} tensors"
    return "" if uncertainty is None else brief(uncertainty)
