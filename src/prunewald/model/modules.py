"""Modules as users hand them over: compiled, averaged, in training mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel


def plain(model: nn.Module) -> nn.Module:
    """The module inside what torch.compile returns, whose parameters have the names the user knows."""
    inside = getattr(model, "_orig_mod", model)
    if not isinstance(inside, nn.Module):
        raise TypeError(f"model={repr(inside)[:200]}: give a torch.nn.Module")
    return inside


def averaged(model: nn.Module) -> nn.Module:
    """The module whose weights an AveragedModel holds, also a compiled one; any other module as it is."""
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
