"""Modules as users hand them over: compiled, on several devices, averaged, in training mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel


def plain(model: nn.Module) -> nn.Module:
    """The module inside what torch.compile, DistributedDataParallel or DataParallel return, in any order and depth.

    Its parameters have the names that the user knows, and that a file of it has wherever it is read.
    """
    inside: Any = model
    while isinstance(inside, nn.Module):
        if isinstance(inside, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inside = inside.module
        elif hasattr(inside, "_orig_mod"):  # what torch.compile returns
            inside = inside._orig_mod
        else:
            return inside
    raise TypeError(f"model={repr(inside)[:200]}: give a torch.nn.Module")


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
