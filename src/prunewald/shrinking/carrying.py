"""The state of an optimizer, for the parameters that are left of those it steps."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.model.optimizers import as_list, forget_history_, layers
from prunewald.model.widths import cut
from prunewald.util.notices import warn
from prunewald.util.text import some

Kept = Mapping[str, Sequence[Tensor | None]]


def check_optimizer(given: Any, model: nn.Module) -> None:
    """Refuse what is no optimizer, or steps none of the model's parameters."""
    own = {id(param) for param in model.parameters()}
    for one in as_list(given):
        if not any(id(param) in own for group in one.param_groups for param in group["params"]):
            raise ValueError(
                f"optimizer: this {type(one).__name__} steps no parameter of the {type(model).__name__}: give the one "
                "that was made with its parameters, or none"
            )


def carried(given: Any, model: nn.Module, small: nn.Module, kept: Kept) -> Any:
    """A copy of an optimizer, or of several, that steps the small model's parameters and remembers the same of them."""
    if isinstance(given, list | tuple):
        return [carried(one, model, small, kept) for one in given]
    new = dict(small.named_parameters())
    old = dict(model.named_parameters())
    memo: dict[int, Any] = {id(param): new[name] for name, param in old.items()}
    for one in layers(given):
        for group in one.param_groups:  # those that are not the model's stay as they are
            memo.update({id(param): param for param in group["params"] if id(param) not in memo})
    for one in reversed(layers(given)):
        memo[id(one)] = _copied(one, memo)
    copy = memo[id(given)]
    shapes = {id(new[name]): (name, old[name].shape, kept.get(name, ())) for name in new}
    for one in layers(copy):
        if any("old_dirs" in state for state in one.state.values()):
            forget_history_(one)
            warn(f"{type(one).__name__} forgets its history, which is of all weights: it begins anew")
        forgotten = [name for param, state in one.state.items() if (name := _cut_(param, state, shapes))]
        for name in forgotten:
            one.state[new[name]].clear()
        if forgotten:
            warn(
                f"{type(one).__name__} keeps state of {some(forgotten, 5)} in a form that cannot be cut: there it "
                "begins anew"
            )
    return copy


def _copied(one: Any, memo: dict[int, Any]) -> Any:
    """A copy with all attributes, which deepcopy would leave out, but for hooks and what a scheduler has patched."""
    copy = object.__new__(type(one))
    left = {name for name in vars(one) if name.endswith("_hooks") or name in ("step", "_opt_called")}
    vars(copy).update(deepcopy({name: value for name, value in vars(one).items() if name not in left}, memo))
    if isinstance(one, Optimizer):
        Optimizer.__setstate__(copy, {})  # gives it hooks of its own
    if "_numel_cache" in vars(copy):  # of LBFGS
        copy._numel_cache = None
    return copy


def _cut_(param: Any, state: Any, shapes: Mapping[int, tuple[str, torch.Size, Sequence[Tensor | None]]]) -> str:
    """Cut all that is kept of a parameter as it was cut itself; its name where that cannot be done."""
    name, shape, axes = shapes.get(id(param), ("", torch.Size(), ()))
    if not any(at is not None for at in axes) or not isinstance(state, dict):
        return ""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.numel() > 1:
            if value.dim() != len(shape) or any(n not in (1, m) for n, m in zip(value.shape, shape, strict=True)):
                return name
            own = [at if n == m else None for at, n, m in zip(axes, value.shape, shape, strict=True)]
            state[key] = cut(value, own).clone(memory_format=torch.preserve_format)
        elif isinstance(value, list | dict | tuple) and value:
            return name
    return ""
