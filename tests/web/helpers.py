"""Small networks that were trained a little, with dead weights, to make pages of."""

from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Images whose left edge is always black, so that some weights get no gradient."""
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(16, 1, 12, 12, generator=generator)
    x[..., :3] = 0
    return x, (x[:, 0, 4:8, 4:8].mean((1, 2)) * 4).long().clamp(0, 3)


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A convolution and two matrices, 1,588 weights."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(150, 9),
        nn.ReLU(),
        nn.Linear(9, 4),
    )
    return nn.Sequential(*layers).to(dtype)


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    """Take these steps."""
    like = next(model.parameters())
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(like)), y).backward()
        optimizer.step()


def trained(dtype: torch.dtype = torch.float32, steps: int = 110, **choices: Any) -> pw.Pruner:
    """A Pruner that watched a training."""
    model = net(dtype)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    pruner = pw.Pruner(model, optimizer, **choices)
    train(model, optimizer, range(steps))
    return pruner
