"""Modules as users hand them over: compiled, on several devices, with adapters, averaged, in training mode."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from torch import nn
from torch.optim.swa_utils import AveragedModel

# Classes around a module, and where they keep it; and those around a layer whose own children stay beside it. By name,
# since peft is not imported here.
_AROUND = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
_AROUND |= {"PeftModel": "base_model", "BaseTuner": "model"}
_BESIDE = {"BaseTunerLayer": "base_layer", "ModulesToSaveWrapper": "modules_to_save"}
_T = TypeVar("_T")


def plain(model: nn.Module) -> nn.Module:
    """The module inside what torch.compile, DistributedDataParallel, DataParallel or peft return, in any order.

    Its parameters have the names that the user knows, and that a file of it has wherever it is read. Where single
    layers are wrapped, it is a view of the model without what is around them: the same parameters and hooks, by plain
    names. Adapters of peft are modules of the layer they adapt, as "fc.lora_A.default" beside "fc.weight"; of a layer
    that it trains whole in a copy, the copy has the plain name, and what it was copied from is "fc.original_module".
    """
    inside: Any = model
    while key := _around(inside.__class__):
        inside = getattr(inside, key)
    if not isinstance(inside, nn.Module):
        raise TypeError(f"model={repr(inside)[:200]}: give a torch.nn.Module")
    kinds: set[Any] = {type(one) for one in inside.modules()}
    bare: nn.Module = _bare(inside, {}) if any(_around(kind) or _beside(kind) for kind in kinds) else inside
    return bare


@cache
def _around(kind: type) -> str:
    """The attribute in which modules of a class keep the one that they only pass on to; empty for all others."""
    return next((_AROUND[base.__name__] for base in kind.__mro__ if base.__name__ in _AROUND), "")


@cache
def _beside(kind: type) -> str:
    """The attribute in which modules of a class keep the layer that they add something to; empty for all others."""
    return next((_BESIDE[base.__name__] for base in kind.__mro__ if base.__name__ in _BESIDE), "")


def _bare(module: Any, known: dict[Any, Any]) -> Any:
    """A module without what is around its layers: itself, or a twin that shares all but the dict of its children."""
    if module in known:
        return known[module]
    if key := _around(module.__class__):
        known[module] = _bare(getattr(module, key), known)
        return known[module]
    children = {name: _bare(child, known) for name, child in module._modules.items() if child is not None}
    twin, beside = module, _beside(module.__class__)
    if beside:
        layer = children.pop(beside)
        if isinstance(layer, nn.ModuleDict):  # copies of one layer, of which one is in use
            copies: dict[str, Any] = dict(layer._modules)
            layer = copies.pop(next(iter(module.active_adapters), ""), None) or children.pop("original_module")
            children |= {beside: _twin(module._modules[beside], copies)} if copies else {}
        # What the layer computes is what the one around it does with it.
        twin = _twin(layer, {**layer._modules, **children}, forward=module.forward)
    elif any(child is not module._modules[name] for name, child in children.items()):
        twin = _twin(module, children)
    known[module] = twin
    return twin


def _twin(module: Any, children: dict[str, Any], **more: Any) -> Any:
    twin = object.__new__(type(module))
    twin.__dict__.update({**vars(module), "_modules": children, **more})
    return twin


def plain_names(model: nn.Module, given: _T) -> _T:
    """A dict by the names of parameters in a model as it was handed over, by the names in what `plain` gives of it.

    Anything else is as it was.
    """
    if not isinstance(given, dict):
        return given
    names = {id(param): name for name, param in plain(model).named_parameters()}
    aliases = {name: names.get(id(param), name) for name, param in model.named_parameters(remove_duplicate=False)}
    if all(aliases.get(name, name) == name for name in given):
        return given
    found = copy.copy(given)  # of its own kind, with what an estimator says of it
    found.clear()
    found.update({aliases.get(name, name): value for name, value in given.items()})
    return found


def averaged(model: nn.Module) -> nn.Module:
    """The module whose weights an AveragedModel holds, without what is around it; of any other, what `plain` gives."""
    return plain(model.module if isinstance(model, AveragedModel) else model)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside a with block (no dropout, no running statistics); then each module has its own mode back."""
    modes: list[tuple[nn.Module, Any]] = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
