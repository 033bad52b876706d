"""What the state of an optimizer means for a weight: second moments, first moments, skipped steps, master weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.util.tensors import accumulator, in_pieces, zero_
from prunewald.util.trees import copied

# State that moves a weight though its gradient is zero. Second moments stay where they are: zeroed, they would give a
# weight that comes back a kick of several learning rates.
_FIRST_ORDER = ("exp_avg", "momentum_buffer", "grad_avg", "prev", "ax")
# Other values of the weights themselves, which are written back to them or averaged with them: those of schedule-free
# optimizers, of Lookahead as four packages spell it, and of SAM.
_OTHER_VALUES = ("z", "slow_param", "slow_params", "slow_buffer", "lookahead_slow_buff", "slow_momentum", "old_p")
_INSIDE = ("optimizer", "base_optimizer", "_base_optimizer", "base")  # where wrappers keep what they wrap


class Rule(NamedTuple):
    """Where a family of optimizers keeps its mean square, and how that was averaged."""

    key: str  # of the state of a parameter
    decay: str  # the group's key for the decay of an exponential average, or for what a sum started with
    beside: frozenset[str]  # what else may be in the state: any other key may mean another basis


_ADAM = Rule("exp_avg_sq", "betas", frozenset({"step", "exp_avg", "max_exp_avg_sq", "mu_product", "master_param"}))
_RMSPROP = Rule("square_avg", "alpha", frozenset({"step", "momentum_buffer", "grad_avg", "master_param"}))
_ADADELTA = Rule("square_avg", "rho", frozenset({"step", "acc_delta", "master_param"}))
_ADAGRAD = Rule("sum", "initial_accumulator_value", frozenset({"step", "master_param"}))

# torch's own, then those of apex, DeepSpeed, timm and schedulefree that average the same square. By name, since these
# packages are not imported here; that a name is not enough is what the rest of a rule is for.
_RULES = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam"), _ADAM),
    **dict.fromkeys(("FusedAdam", "DeepSpeedCPUAdam", "Lamb", "FusedLAMB", "AdamP"), _ADAM),
    **dict.fromkeys(("AdamWScheduleFree", "RAdamScheduleFree"), _ADAM),
    "RMSprop": _RMSPROP,
    "Adadelta": _ADADELTA,
    "Adagrad": _ADAGRAD,
}

# Those among them that add weight decay to the gradient first, unless they are told to decouple it.
_COUPLED = ("Adam", "NAdam", "RAdam", "RMSprop", "Adadelta", "Adagrad")

# What the keys of a state tell about a second moment that is there, but not as a mean square of each weight.
_OTHER_FORMS = {
    "only row and column means of the second moment": ("row_var", "col_var", "exp_avg_sq_row", "exp_avg_sq_col"),
    "the second moment in a rotated basis": ("Q", "GG", "preconditioner"),
    "the second moment of projected gradients": ("projector", "ortho_matrix"),
    "a quantised second moment": ("qmap2", "absmax2"),
}


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


class MeanSquare(NamedTuple):
    """A mean square as an optimizer keeps it."""

    kept: Tensor
    rule: Rule
    group: dict[str, Any]  # the group of the parameter
    steps: Any  # how many are in it: a number, or a tensor that may be on a device


def mean_square_state(optimizer: Optimizer | None, param: Tensor, *, stepped: bool = False) -> MeanSquare | str:
    """What an optimizer keeps that is an elementwise mean square of a parameter's gradient; else the reason why not.

    It is one only if all of this is so; an optimizer that is not known is never believed, since states of the same
    name and shape mean different things (Yogi's is a sum of signed steps, ADOPT's starts elsewhere):

    - the optimizer, or a class it derives from, is in the table of those that are known to keep one;
    - the state of the parameter has no key that such an optimizer does not have: no basis, no projector;
    - it is a plain dense tensor of 16 bits or more, floating, with the shape of the parameter;
    - at least one step is in it. After a step, `stepped` saves looking: a count on a device has to be waited for.
    """
    if optimizer is None:
        return "there is no optimizer that steps it"
    name, state = type(optimizer).__name__, optimizer.state.get(param, {})
    rule = next((_RULES[base.__name__] for base in type(optimizer).__mro__ if base.__name__ in _RULES), None)
    if other := next((form for form, keys in _OTHER_FORMS.items() if any(key in state for key in keys)), None):
        return f"{name} keeps {other}, not a mean square of each weight"
    if rule is not None and not state:
        return f"{name} has taken no step with a gradient for it yet"
    kept = state.get("exp_avg_sq" if rule is None else rule.key)
    if not isinstance(kept, Tensor):
        return f"{name} keeps no mean square of each weight's gradient"
    if kept.shape != param.shape:
        return f"{name} keeps a second moment of shape {tuple(kept.shape)}, not {tuple(param.shape)}"
    if type(kept) not in (Tensor, nn.Parameter) or not kept.is_floating_point() or kept.element_size() < 2:
        return f"{name} keeps a quantised second moment ({type(kept).__name__} of {kept.dtype})"
    if rule is None:
        return f"{name} is not known to keep a mean square of each weight's gradient"
    if beside := [str(key) for key in state if key not in (rule.key, *rule.beside, *_OTHER_VALUES)]:
        return f"{name} keeps {', '.join(beside)} beside its second moment, so what that is of is not known"
    group = next((group for group in optimizer.param_groups if id(param) in map(id, group["params"])), None)
    if group is None:
        return f"{name} steps it no more"
    steps = state.get("step", group.get("step", group.get("k")))  # some optimizers count them by group
    if isinstance(steps, Tensor) and steps.is_meta:
        return f"{name} counts its steps on the meta device, the default one, so how many there were is not known"
    if kept.layout != torch.strided or rule.decay not in group or steps is None:
        return f"{name} does not say how, and over how many steps, its second moment is averaged"
    if not stepped and not steps:
        return f"{name} has taken no step with a gradient for it yet"
    return MeanSquare(kept, rule, group, steps)


def couples_decay(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Whether weight decay is added to the gradient before its square is averaged, as by Adam and not by AdamW."""
    kinds = [base.__name__ for base in type(optimizer).__mro__]
    coupled = next((kind in _COUPLED for kind in kinds if kind in _RULES), False)
    asked = (getattr(optimizer, name, True) for name in ("adam_w_mode", "adamw_mode"))  # of apex and DeepSpeed
    decoupled = group.get("decoupled_weight_decay", False)
    return bool(group.get("weight_decay")) and (not all(asked) or (coupled and not decoupled))


def keeps_mean_square(optimizer: Optimizer | None, param: Tensor) -> bool:
    """Whether there is a mean squared gradient of a parameter, without computing it."""
    return not isinstance(mean_square_state(optimizer, param), str)


def why_no_mean_square(params: Mapping[str, Tensor], optimizers: Mapping[str, Optimizer]) -> str:
    """Why some parameter has no mean squared gradient; empty where each has an optimizer that keeps one."""
    for name, param in params.items():
        if not param.requires_grad:
            return f"{name!r} does not require gradients"
        found = mean_square_state(optimizers.get(name), param)
        if isinstance(found, str):
            return f"there is no second moment of {name!r}: {found}"
    return ""


def mean_square_gradient(optimizer: Optimizer | None, param: Tensor) -> Tensor | None:
    """The mean squared gradient an optimizer keeps for a parameter, without its start-up bias; None if it keeps none.

    The Adam family, RMSprop, Adadelta and Adagrad do; AMSGrad's running maximum is not a mean and stays unused.
    """
    found = mean_square_state(optimizer, param)
    if isinstance(found, str):
        return None
    kept, rule, group, steps = found
    if rule is _ADAGRAD:
        total: Tensor = kept.detach().to(accumulator(kept)) - group[rule.decay]
        return total.clamp_(min=0).div_(float(steps))
    decay = group[rule.decay][1] if rule is _ADAM else group[rule.decay]
    wide = torch.float64 if kept.dtype == torch.float64 else torch.float32
    bias = 1 - decay ** float(steps)
    return in_pieces(lambda piece: piece.to(wide) / bias, kept.detach())


def with_closures(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a step pre-hook returns so that the closure given to step() is wrapped; None where none was given."""
    if not any(map(callable, (*args, *kwargs.values()))):
        return None
    own = [wrap(a) if callable(a) else a for a in args]
    return tuple(own), {key: wrap(a) if callable(a) else a for key, a in kwargs.items()}


def forget_(optimizer: Any, param: Tensor, alive: Tensor) -> list[str]:
    """Clear, at pruned places, what would move a weight without a gradient; the keys of what cannot be cleared.

    Quantised state, and other tensors with a form of their own, stay as they are.
    """
    state, left = optimizer.state.get(param, {}), []
    for key in (*_FIRST_ORDER, *_OTHER_VALUES):
        if isinstance(value := state.get(key), Tensor) and value.shape == alive.shape:
            # One code of a quantised tensor stands for another value once its neighbours change.
            if type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and value.is_floating_point():
                zero_(value, alive.to(value.device))
            else:
                left.append(key)
    if isinstance(size := state.get("step_size"), Tensor) and size.shape == alive.shape:
        group = group_of(optimizer, param)
        assert group is not None
        size.masked_fill_(~alive.to(size.device), float(group["lr"]))
    return left


def forget_history_(optimizer: Optimizer) -> None:
    """Drop the curvature pairs of LBFGS: they were seen with other weights free."""
    for state in optimizer.state.values():
        if "old_dirs" in state:
            state.clear()


def layers(given: object) -> list[Any]:
    """An optimizer and all that it wraps, the outermost first; each may keep a state of its own for a weight."""
    found: list[Any] = []
    while given is not None and not any(one is given for one in found):
        found.append(given)
        inside = (getattr(given, name, None) for name in _INSIDE)
        given = next((one for one in inside if hasattr(one, "param_groups")), None)
    return found


def own_state(wrapper: Any) -> list[dict[str, Any]]:
    """A copy of what a wrapper keeps of each parameter, in the order of its groups: Lookahead's slow weights."""
    return [copied(dict(wrapper.state.get(p, {}))) for group in wrapper.param_groups for p in group["params"]]


def set_own_state_(wrapper: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Go back to such a copy."""
    params = [p for group in wrapper.param_groups for p in group["params"]]
    wrapper.state.clear()
    wrapper.state.update({p: copied(dict(own)) for p, own in zip(params, states, strict=True) if own})


def unwrapped(optimizer: object) -> Optimizer | None:
    """The innermost optimizer whose steps can be watched, None where there is no such one.

    Accelerate, Lightning and the Trainer wrap optimizers in classes that only look like one: torch runs step hooks
    for those alone whose own `__init__` has called that of torch.optim.Optimizer. SAM has hooks, but is stepped by
    `first_step` and `second_step`, which run none. The innermost is the one whose `step` is always called; what a
    wrapper writes back after it is zero where `forget_` has cleared its state.
    """
    return _innermost(layers(optimizer))


def _innermost(found: Sequence[Any]) -> Optimizer | None:
    """The last of these for which torch runs step hooks."""
    for one in reversed(found):
        hooked = isinstance(one, Optimizer) and getattr(type(one).step, "hooked", False)
        if hooked and "_optimizer_step_post_hooks" in vars(one):
            return cast(Optimizer, one)
    return None


class Given(NamedTuple):
    """What a caller gave as optimizers."""

    names: list[str]  # of their kinds, as they were given
    optimizers: list[Optimizer]  # those inside whose steps can be watched, each once
    kept: list[Any]  # of all layers, one for each state that is kept
    evaluations: int  # how many training passes one step may take, where it says so, as LBFGS does


def as_list(given: object) -> list[Optimizer]:
    """One optimizer, several, or none, as a list with each once and without what was wrapped around it."""
    return as_given(given).optimizers


def as_given(given: object) -> Given:
    """One optimizer, several, or none: what can be watched of them, and what keeps state."""
    if given is None:
        return Given([], [], [], 0)
    single = isinstance(given, Optimizer) or hasattr(given, "optimizer") or not isinstance(given, Iterable)
    several: list[Any] = [given] if single else list(cast(Iterable[object], given))
    every = [layers(one) for one in several]
    found = [_innermost(one) for one in every]
    for one, inside in zip(several, found, strict=True):
        if inside is None and (isinstance(one, Optimizer) or hasattr(one, "optimizer")):
            raise TypeError(
                f"optimizer: {type(one).__name__} has no step hooks of torch.optim.Optimizer, nor an .optimizer that "
                "has them: give the optimizer inside it, or none, and call the Pruner's apply_() after each step"
            )
    if None in found:
        raise TypeError(
            f"optimizer={repr(given)[:200]}: give a torch.optim.Optimizer, a list of them, or None; "
            "a sparsity is given to prune(), as in Pruner(model, optimizer).prune(0.9)"
        )
    stateful = (one for chain in every for one in chain if isinstance(getattr(one, "state", None), Mapping))
    kept = {id(one.state): one for one in stateful}  # the innermost, of several that show the same
    watched = {id(one): one for one in found if one is not None}
    passes = [group.get("max_eval") or 0 for one in watched.values() for group in one.param_groups]
    names = [type(one).__name__ for one in several]
    return Given(names, list(watched.values()), list(kept.values()), max(passes, default=0))


def owned(params: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> list[list[str]]:
    """Which parameters each optimizer steps; without optimizers, all of them belong to the user's own step."""
    held = [{id(p) for group in o.param_groups for p in group["params"]} for o in optimizers]
    if not held:
        return [list(params)]
    return [[name for name, p in params.items() if id(p) in own] for own in held]


def stepped_by(params: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> dict[str, Optimizer]:
    """By name, the optimizer that steps a parameter now: it may have been added to a group, or moved, since before."""
    groups = [(group, optimizer) for optimizer in reversed(optimizers) for group in optimizer.param_groups]
    found = {id(param): optimizer for group, optimizer in groups for param in group["params"]}
    return {name: found[id(param)] for name, param in params.items() if id(param) in found}
