"""Modules that torch.nn.utils.prune has pruned: what is in them, and how they become plain ones that a Pruner holds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import Optimizer

from prunewald.export import from_torch_prune
from prunewald.model.layouts import survey
from prunewald.model.masking import check_masks
from prunewald.model.modules import plain
from prunewald.pruner import Pruner
from prunewald.util.text import some

Place: TypeAlias = tuple[nn.Module, str]  # a parameter as torch.nn.utils.prune names it: a module, and its own name
_SHOWN = 6


@dataclass(frozen=True)
class Live:
    """A parameter of a module, which torch.nn.utils.prune may have pruned already."""

    place: Place
    param: Tensor
    mask: Tensor | None  # torch's, by which the weights are multiplied

    @property
    def label(self) -> str:
        """Its name in errors."""
        return f"{self.place[1]!r} of {type(self.place[0]).__name__}"

    @property
    def alive(self) -> Tensor | None:
        """True where a weight is not pruned; None: nothing is."""
        return None if self.mask is None else self.mask != 0

    @property
    def left(self) -> int:
        """How many weights are not pruned."""
        return self.param.numel() if self.mask is None else int(torch.count_nonzero(self.mask))

    @property
    def values(self) -> Tensor:
        """The weights as the module has them."""
        return self.param.detach() if self.mask is None else self.param.detach() * self.mask.to(self.param.dtype)


def live(module: nn.Module, name: str) -> Live:
    """A parameter by its module and its name there; an error where there is none."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"{module!r} is no module: give torch.nn.utils.prune's (module, name), as (model.fc, 'weight')")
    mask = module._buffers[f"{name}_mask"] if name in _pruned_names(module) else None
    param = module._parameters.get(name if mask is None else f"{name}_orig")
    if param is None:
        gone = {f"{one}_orig": one for one in _pruned_names(module)}
        own = [gone.get(leaf, leaf) for leaf, held in module._parameters.items() if held is not None]
        raise ValueError(
            f"{name!r} is no parameter of {type(module).__name__}; it has {some(own, _SHOWN) or 'none of its own'}"
        )
    return Live((module, name), param, mask)


def _pruned_names(module: nn.Module) -> list[str]:
    """The parameters of a module that torch.nn.utils.prune has pruned."""
    hooks = module._forward_pre_hooks.values()
    return [hook._tensor_name for hook in hooks if isinstance(hook, prune.BasePruningMethod)]


def masks(model: nn.Module) -> dict[str, Tensor]:
    """The masks of a model that torch.nn.utils.prune has pruned, by the names that its parameters have without it."""
    found = {}
    for place, module in plain(model).named_modules():
        for name in _pruned_names(module):
            found[f"{place}.{name}".lstrip(".")] = module._buffers[f"{name}_mask"] != 0
    return found


def take_over(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    state: Mapping[str, Tensor] | None = None,
    **choices: Any,
) -> Pruner:
    """Make a model that torch.nn.utils.prune has pruned a plain one, and hold its zeros by a Pruner.

    The model is pruned, with `weight_orig` and `weight_mask` in it, or it is plain and `state` is the state dict of one
    that was. `choices` are the Pruner's own. By default its targets are what they are of a plain model, and all that
    has a mask. The parameters stay the same tensors, so an optimizer goes on; what `weight_orig` had where the mask is
    0 is gone. On any error the model is as it was.
    """
    found = masks(model)
    if state is not None:
        if found:
            raise ValueError(
                f"state= is for a plain model, and torch.nn.utils.prune has pruned {next(iter(found))!r} of this one: "
                "load_state_dict(state) first, then take_over(model)"
            )
        return _from_state(model, optimizer, state, choices)
    if not found:
        raise ValueError(
            f"nothing in this {type(plain(model)).__name__} is pruned by torch.nn.utils.prune: give state=, the "
            "state dict of one that is; zeros of any origin are held by Pruner(model, optimizer).hold_zeros()"
        )
    with _restoring(model):
        for module in plain(model).modules():
            for name in _pruned_names(module):
                prune.remove(module, name)
        pruner = _attached(model, optimizer, found, choices)
    return _holding(pruner, found)


def _from_state(model: nn.Module, optimizer: Any, state: Mapping[str, Tensor], choices: Mapping[str, Any]) -> Pruner:
    weights, found = from_torch_prune(state)
    if not found:
        raise ValueError(
            "state has no '..._orig' and '..._mask': it is of no model that torch.nn.utils.prune has pruned"
        )
    inside = plain(model)
    have = inside.state_dict()
    wrong = [name for name in {**have, **weights} if name not in have or name not in weights]
    wrong += [name for name in weights if name in have and weights[name].shape != have[name].shape]
    if wrong:
        raise ValueError(
            f"state is of another model than this {type(inside).__name__}: {some(wrong, _SHOWN)} is missing in one of "
            "the two, or has another shape"
        )
    pruner = _attached(model, optimizer, found, choices)
    inside.load_state_dict(weights)
    return _holding(pruner, found)


def _attached(model: nn.Module, optimizer: Any, found: Mapping[str, Tensor], choices: Mapping[str, Any]) -> Pruner:
    """A Pruner that has all masks among its targets."""
    if choices.get("targets") is None:
        usual = survey(plain(model)).weights
        if beside := [name for name in found if name not in usual]:
            choices = {**choices, "targets": [*usual, *beside]}
    pruner = Pruner(model, optimizer, **choices)
    try:
        check_masks(found, pruner.zeros.params, what="the masks of torch.nn.utils.prune beside targets= and ignore=")
    except ValueError:
        pruner.detach()
        raise
    return pruner


def _holding(pruner: Pruner, found: Mapping[str, Tensor]) -> Pruner:
    pruner.set_masks(pruner.masks | dict(found))
    return pruner


@contextmanager
def _restoring(model: nn.Module) -> Iterator[None]:
    """On an error, give every module that torch.nn.utils.prune has pruned back as it was."""
    before: list[tuple[nn.Module, Any, list[tuple[dict[Any, Any], dict[Any, Any]]]]] = []
    for module in plain(model).modules():
        if names := _pruned_names(module):
            made = {name: (vars(module).get(name), module._parameters[f"{name}_orig"]) for name in names}
            values = {name: (tensor, orig, orig.data) for name, (tensor, orig) in made.items() if orig is not None}
            tables: tuple[dict[Any, Any], ...] = (module._parameters, module._buffers, module._forward_pre_hooks)
            before.append((module, values, [(table, dict(table)) for table in tables]))
    try:
        yield
    except BaseException:
        for module, values, kept in before:
            for table, earlier in kept:
                table.clear()
                table.update(earlier)
            for name, (tensor, orig, data) in values.items():
                orig.data = data
                vars(module)[name] = tensor
        raise
