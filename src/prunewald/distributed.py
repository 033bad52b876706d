"""The only file that knows of process groups and sharded tensors."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

# Whether this process belongs to a group of processes that train together.
in_group: Callable[[], bool] = dist.is_initialized if dist.is_available() else bool


def summed(value: Tensor) -> Tensor:
    """The sum over all processes, in every one of them; the tensor itself where there is but one."""
    if not in_group():
        return value
    total = value.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def refuse_sharded(params: Mapping[str, Tensor]) -> None:
    """Refuse tensors of which each process holds a part (FSDP2, tensor parallelism): their zeros would not hold."""
    from torch.distributed.tensor import DTensor

    for name, param in params.items():
        if isinstance(param, DTensor):
            raise TypeError(
                f"{name!r} is sharded over processes (a DTensor), which is not supported yet: prune the whole model "
                "before fully_shard(), or train with DistributedDataParallel"
            )
