"""One pass over data, for what a Pruner wants to know of them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import EMPTY, Batches
from prunewald.uncertainty.derivatives import plain_autograd
from prunewald.uncertainty.likelihood import Loss, as_function


def pass_gradients(model: nn.Module, params: Sequence[Tensor], batches: Batches, loss: Loss, limit: int | None) -> None:
    """Compute the gradient of the loss of each batch, of so many at most, in eval mode: hooks on parameters hear it.

    Gradients that were kept, buffers, modes and torch's random numbers are as before.
    """
    if not params:
        raise ValueError(
            "no target requires gradients, so nothing reaches any: requires_grad_(True) on the layers to see"
        )
    function, found, reached = as_function(loss), False, False
    with torch.inference_mode(False), torch.enable_grad(), _untouched(model), plain_autograd():
        for x, y in islice(_moved(batches, params[0].device), limit):
            found = True
            number = function(model(x), y).sum()
            if number.requires_grad and number.isfinite():
                reached = True
                torch.autograd.grad(number, params, allow_unused=True)
    if not found:
        raise ValueError(EMPTY.format(type(batches).__name__))
    if not reached:
        raise ValueError("no batch gave a loss that is finite and has a gradient: give the loss of the model's outputs")


def _moved(batches: Iterable[Any], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in batches:
        yield x.to(device), y.to(device)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """A with block that leaves a model and torch's random numbers as they were."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with evaluating(model), torch.random.fork_rng(list(devices)):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)
