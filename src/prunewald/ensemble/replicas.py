"""The model of a replica: how it is built anew, and what of a given model stays as it is."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Make: TypeAlias = Callable[[], nn.Module] | nn.Module


def separate(make: Make) -> Make:
    """The same function, or one that copies what it returns, if two of its models share tensors.

    A function may return one and the same model each time, or build new heads on a common backbone. Models are not
    copied without need, since torch cannot copy all of them.
    """
    if isinstance(make, nn.Module):
        return make
    with seeded(0):
        one, other = make(), make()
    return partial(_copied, make) if _storages(one) & _storages(other) else make


def _copied(make: Callable[[], nn.Module]) -> nn.Module:
    return copy.deepcopy(make())


def _storages(model: nn.Module) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(model).values() if tensor.numel()}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict((*model.named_parameters(), *model.named_buffers()))


def build(make: Make, seed: int) -> nn.Module:
    """A new model, whose initialisation depends on this seed alone."""
    with seeded(seed):
        return _fresh(make) if isinstance(make, nn.Module) else make()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generators begin at this seed in here, and afterwards go on where they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _fresh(given: nn.Module) -> nn.Module:
    """A copy with new initial values, except for what is not trained."""
    module = copy.deepcopy(given)
    for name, inner in module.named_modules():
        reset: Any = getattr(inner, "reset_parameters", None)
        if reset is not None:
            reset()
        elif any(param.requires_grad for param in inner.parameters(recurse=False)):
            raise ValueError(
                f"{name or 'the model'} ({type(inner).__name__}) has no reset_parameters(): "
                "give a function that builds the model, or start='same'"
            )
    # Only now, since a module may reset the modules inside it too.
    own = dict((*module.named_parameters(), *module.named_buffers(remove_duplicate=False)))
    with torch.no_grad():
        for name, tensor in _kept(given).items():
            own[name].copy_(tensor)
    return module


def _kept(model: nn.Module) -> dict[str, Tensor]:
    """Parameters that are not trained, and the running statistics of modules that are not trained or in eval mode."""
    kept: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    resting = _resting(model)
    for prefix, module in model.named_modules():
        params = list(module.parameters())
        if module in resting or (params and not any(param.requires_grad for param in params)):
            kept |= dict(module.named_buffers(prefix))
    return kept


def _resting(model: nn.Module) -> set[nn.Module]:
    """Modules that alone were put in eval mode; a model that is in it as a whole was only evaluated last."""
    return {module for module in model.modules() if model.training and not module.training}


def train_(model: nn.Module) -> nn.Module:
    """Call model.train(), but leave modules that alone were put in eval mode as they are."""
    resting = _resting(model)
    model.train()
    for module in resting:
        module.training = False
    return model
