"""The model of a replica: built anew, and what of a given one stays as it is."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Make: TypeAlias = Callable[[], nn.Module] | nn.Module


def separate(make: Make) -> Make:
    """The same, where a function gives tensors again that it gave before: then each model is a copy.

    It may return one model each time, or build a new head on a common backbone. Models are not copied without need:
    torch cannot copy all of them.
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
    """A new model, initialised by this seed alone."""
    with seeded(seed):
        return _fresh(make) if isinstance(make, nn.Module) else make()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generators begin at this seed, and afterwards go on where they were."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def _fresh(given: nn.Module) -> nn.Module:
    """A copy that is initialised anew, as far as it is trained."""
    module = copy.deepcopy(given)
    for name, part in module.named_modules():
        reset: Any = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
        elif any(param.requires_grad for param in part.parameters(recurse=False)):
            raise ValueError(
                f"{name or 'the model'} ({type(part).__name__}) has no reset_parameters(): "
                "give a function that builds the model, or start='same'"
            )
    # Afterwards, since a module may reset the parts inside it too.
    own = dict((*module.named_parameters(), *module.named_buffers(remove_duplicate=False)))
    with torch.no_grad():
        for name, tensor in _kept(given).items():
            own[name].copy_(tensor)
    return module


def _kept(model: nn.Module) -> dict[str, Tensor]:
    """Frozen parameters, and the buffers (running statistics) of parts that are frozen or in eval mode."""
    kept: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    resting = _resting(model)
    for prefix, part in model.named_modules():
        params = list(part.parameters())
        if part in resting or (params and not any(param.requires_grad for param in params)):
            kept |= dict(part.named_buffers(prefix))
    return kept


def _resting(model: nn.Module) -> set[nn.Module]:
    """Parts put in eval mode by themselves; where the whole model is, it was only evaluated last."""
    return {part for part in model.modules() if model.training and not part.training}


def train_(model: nn.Module) -> nn.Module:
    """model.train(), but for the parts that were put in eval mode by themselves."""
    resting = _resting(model)
    model.train()
    for part in resting:
        part.training = False
    return model
