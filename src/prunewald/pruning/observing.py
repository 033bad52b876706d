"""One pass over data, for what a Pruner wants to know of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from prunewald.model.calibration import Batch, counted_positions
from prunewald.model.inputs import only_positions
from prunewald.model.modules import evaluating
from prunewald.uncertainty.batches import value_of
from prunewald.uncertainty.derivatives import plain_autograd
from prunewald.uncertainty.likelihood import Loss

Take = Callable[[Mapping[str, Tensor]], None]  # is given the gradients of a batch, by parameter

_NO_LOSS = (
    "the loss of a batch, {}, is {}: give a loss that is a finite number, and leave out batches in which nothing counts"
)


def pass_gradients(
    model: nn.Module, params: Mapping[str, Tensor], batches: Iterable[Batch], loss: Loss | None, take: Take
) -> None:
    """Compute the gradient of the loss of each batch in eval mode: hooks on parameters hear it, and `take` is given it.

    Gradients that were kept, buffers, modes and torch's random numbers are as before. Without a loss it is the one that
    the model computes itself.
    """
    if not params:
        raise ValueError(
            "no target requires gradients, so nothing reaches any: requires_grad_(True) on the layers to see"
        )
    reached = False
    with torch.inference_mode(False), torch.enable_grad(), _untouched(model), plain_autograd():
        for batch in batches:
            with only_positions(counted_positions(batch)):
                number = value_of(loss, model, batch)
            if not isinstance(number, Tensor) or not bool(number.isfinite().all()):
                raise ValueError(_NO_LOSS.format(batch.given, _shown(number)))
            if number.requires_grad:
                reached = True
                found = torch.autograd.grad(number.sum(), [*params.values()], allow_unused=True)
                take({name: grad for name, grad in zip(params, found, strict=True) if grad is not None})
    if not reached:
        raise ValueError("no batch gave a loss that has a gradient: give the loss of the model's outputs")


def pass_inputs(model: nn.Module, batches: Iterable[Batch], take: Take) -> None:
    """Give each batch to the model in eval mode, for hooks that read the inputs of layers; nothing else changes."""
    with torch.no_grad(), _untouched(model):
        for batch in batches:
            with only_positions(counted_positions(batch)):
                batch.call(model)
            take({})


def _shown(number: object) -> str:
    """What came in the place of a loss."""
    if not isinstance(number, Tensor):
        return f"a {type(number).__name__}"
    return (
        f"{number.item():g}" if number.numel() == 1 else f"a tensor {tuple(number.shape)} with NaN or infinite entries"
    )


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
