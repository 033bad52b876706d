"""What the tests of iterative pruning share: levels, choices of parts, and a model that was trained a little."""

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import prunewald as pw
from prunewald.util.trees import copied

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


class Work:
    """A model, its optimizer and Pruner, and a train function whose batches come from torch's global random numbers."""

    def __init__(
        self,
        seed: int = 0,
        optimizer: Callable[..., Optimizer] | None = None,
        kill: Any = None,
        device: str = "cpu",
        **choice: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 4)).to(device)
        make = optimizer or (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
        self.optimizer = make(self.model.parameters())
        self.pruner = pw.Pruner(self.model, self.optimizer, **{"scope": "layer", **choice})
        self.kill, self.device = kill, device
        self.trained: list[float] = []

    def steps(self, count: int) -> float:
        for _ in range(count):
            self.optimizer.zero_grad()
            x = torch.randn(16, 6, device=self.device)
            loss = (self.model(x) - torch.tanh(x[:, :4] - 0.5 * x[:, 2:])).square().mean()
            loss.backward()
            self.optimizer.step()
        return float(loss.item())

    def train(self, one: Any) -> float:
        self.trained.append(one.sparsity)
        if self.kill is not None and one.index == self.kill[0]:
            self.steps(self.kill[1])
            os.kill(os.getpid(), signal.SIGKILL)
        return self.steps(12)

    def accuracy(self) -> float:
        return -float(self.losses().mean())

    def losses(self) -> Tensor:
        """Of 200 examples, between 0 and 1."""
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(200, 6, generator=generator)
        training = self.model.training
        with torch.no_grad():
            found: Tensor = self.model.eval()(x)
        self.model.train(training)
        return (found - torch.tanh(x[:, :4] - 0.5 * x[:, 2:])).abs().mean(1).clamp(max=1)

    def state(self) -> dict[str, Any]:
        """Everything that is the user's, copied."""
        return {
            "model": copied(self.model.state_dict()),
            "grads": [None if p.grad is None else p.grad.clone() for p in self.model.parameters()],
            "optimizer": copied(self.optimizer.state_dict()),
            "pruner": copied(self.pruner.state_dict()),
            "dropout": self.model[2].p,
            "random": torch.get_rng_state(),
            "report": str(self.pruner.report),
        }


def trained(steps: int = 12, **choice: Any) -> Work:
    work = Work(**choice)
    work.steps(steps)
    return work
