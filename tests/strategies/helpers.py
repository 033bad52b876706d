"""What the tests of iterative pruning share: levels, choices of parts, and a model that was trained a little."""

from typing import Any

import torch
from torch.optim import Optimizer

import prunewald as pw
from tests.strategies.runs import Work

LEVELS = (0.3, 0.6, 0.8)


def adam(params: Any) -> Optimizer:
    return torch.optim.Adam(params, lr=0.01)


CHOICES: dict[str, dict[str, Any]] = {
    "magnitude": {"criterion": "magnitude", "scope": "global"},
    "window": {"uncertainty": pw.PseudoBootstrap(last=10)},
    "adam": {"optimizer": adam},
    "sgd": {"uncertainty": pw.SecondMoment()},
    "platon": {"criterion": "platon"},
}


def trained(steps: int = 12, **choice: Any) -> Work:
    work = Work(**choice)
    work.steps(steps)
    return work
