"""The only file that knows of process groups and sharded tensors."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

_T = TypeVar("_T")

# Whether this process belongs to a group of processes that train together.
in_group: Callable[[], bool] = dist.is_initialized if dist.is_available() else bool


def summed(value: Tensor) -> Tensor:
    """The sum over all processes, in every one of them; the tensor itself where there is but one."""
    if not in_group():
        return value
    total = value.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def listed(value: list[_T]) -> list[_T]:
    """What is in the lists of all processes, each once, in one order; the list itself where there is but one."""
    if not in_group():
        return value
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return list(dict.fromkeys(one for part in found for one in part))


def in_any(mask: Tensor) -> Tensor:
    """True where it is so in any process, in every one of them; the mask itself where there is but one process."""
    if not in_group():
        return mask
    anywhere = mask.to(torch.uint8, memory_format=torch.contiguous_format)
    dist.all_reduce(anywhere, dist.ReduceOp.MAX)
    return anywhere.bool()


def refuse_shards(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors of which each process holds a part (FSDP2, tensor parallelism): their zeros would not hold."""
    from torch.distributed.tensor import DTensor

    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            raise TypeError(
                f"{name!r} is sharded over processes (a DTensor), which is not supported yet: prune and save the whole "
                "model before fully_shard(), or train with DistributedDataParallel"
            )


def refuse_sharded(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Refuse to go on with parameters that were sharded after a Pruner was attached to them.

    It is asked for after every step: a look at who stands in a parameter's place, and no more as long as nobody else
    does.
    """
    places = _places.get(model)
    if places is None:
        places = _places[model] = _homes(model)
    for name, param in params.items():
        home, leaf = places.get(name, ({}, ""))
        if home and home.get(leaf) is not param and _is_shard(model, home.get(leaf)):
            raise TypeError(
                f"{name!r} was sharded over processes after its Pruner was attached, which is not supported yet: the "
                "Pruner holds none of its zeros any more; call detach() before fully_shard(), or train with "
                "DistributedDataParallel"
            )


_Home: TypeAlias = Mapping[str, Tensor | None]  # the parameters of one module, by their last names
_places: WeakKeyDictionary[nn.Module, dict[str, tuple[_Home, str]]] = WeakKeyDictionary()


def _homes(model: nn.Module) -> dict[str, tuple[_Home, str]]:
    """By name of a parameter: the table of its module, which is where fully_shard() puts another, and its key there."""
    modules = model.named_modules(remove_duplicate=False)
    return {f"{path}.{leaf}".lstrip("."): (m._parameters, leaf) for path, m in modules for leaf in m._parameters}


def _is_shard(model: nn.Module, present: Tensor | None) -> bool:
    """Whether a parameter's place was taken by a shard, or in a forward pass by what was gathered from the shards."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    return isinstance(present, DTensor) or any(isinstance(module, FSDPModule) for module in model.modules())
