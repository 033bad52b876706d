"""A plain training loop over tensors, and accuracy."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def steps(images: int, epochs: int, batch_size: int = 128) -> int:
    """Count the optimizer steps `train` takes."""
    return epochs * math.ceil(images / batch_size)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    epochs: int,
    batch_size: int = 128,
    *,
    generator: torch.Generator | None = None,
    progress: Callable[[], None] | None = None,
) -> None:
    """Train by cross entropy; `generator` draws the batch order, `progress` is called after every epoch.

    Batches are as equal as can be, at most `batch_size`: a small last one would end every epoch with a step of
    noise, right before the accuracy is measured (several points, with RMSprop).
    """
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for batch in torch.tensor_split(order, steps(len(x), 1, batch_size)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimizer.step()
        if progress is not None:
            progress()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 1000) -> float:
    """The fraction of images classified right; the model keeps its training mode."""
    training = model.training
    model.eval()
    batches = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
    model.train(training)
    return right / len(y)
