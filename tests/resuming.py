"""A training with two prunings that can be stopped after any event and taken up by fresh objects, or a new process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

import prunewald as pw
from tests.training import fused, loss_of, net

PRUNE = {12: 0.5, 25: 0.8}  # after which event; all other events are training steps
EVENTS = 29
OVERFLOWS = {4, 10, 16, 20}  # steps that a GradScaler has to skip

Make = Callable[[nn.Sequential], tuple[list[Optimizer], pw.Pruner]]


def _sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _fused(model: nn.Module) -> Optimizer:
    return fused("Adam", model.parameters(), lr=0.01)


def _with(optimizer: Callable[[nn.Module], Optimizer], **options: Any) -> Make:
    def make(model: nn.Sequential) -> tuple[list[Optimizer], pw.Pruner]:
        made = optimizer(model)
        return [made], pw.Pruner(model, made, **options)

    return make


def _two(model: nn.Sequential) -> tuple[list[Optimizer], pw.Pruner]:
    optimizers = [_sgd(model[0]), _adam(model[2])]
    return optimizers, pw.Pruner(model, optimizers, uncertainty=pw.PseudoBootstrap(last=10))


RECIPES: dict[str, Make] = {
    "window": _with(_sgd, uncertainty=pw.PseudoBootstrap(last=6, total_steps=12)),
    "rolling": _with(_sgd, uncertainty=pw.PseudoBootstrap(last=10)),
    "every": _with(_adam, uncertainty=pw.PseudoBootstrap(every=2)),
    "every-rolling": _with(_adam, uncertainty=pw.PseudoBootstrap(every=2, last=4)),
    "second-moment-sgd": _with(_sgd, uncertainty=pw.SecondMoment()),
    "second-moment-adam": _with(_adam, uncertainty=pw.SecondMoment()),
    "default": _with(_adam),
    "magnitude": _with(_sgd, criterion="magnitude", scope="global"),
    "two-optimizers": _two,
    "fused-window": _with(_fused, uncertainty=pw.PseudoBootstrap(last=6, total_steps=10)),
    "fused-rolling": _with(_fused, uncertainty=pw.PseudoBootstrap(last=5)),
}


class Run:
    """The training: `go` does events, `save` and `load` are what a user writes into a checkpoint."""

    def __init__(self, recipe: str, seed: int = 0) -> None:
        self.model = net(seed)
        self.optimizers, self.pruner = RECIPES[recipe](self.model)
        self.scaler = GradScaler("cpu", init_scale=1024.0, enabled=recipe.startswith("fused"))
        self.done = 0
        self.sigmas: dict[int, dict[str, Tensor]] = {}

    def go(self, until: int = EVENTS) -> "Run":
        for event in range(self.done, until):
            if event in PRUNE:
                if self.pruner.uncertainty is not None:
                    self.sigmas[event] = self.pruner.sigma()
                self.pruner.prune(PRUNE[event])
            else:
                self.step(event)
        self.done = until
        return self

    def step(self, number: int) -> None:
        self.model.zero_grad()
        overflow = self.scaler.is_enabled() and number in OVERFLOWS
        self.scaler.scale(loss_of(self.model, number) * (torch.inf if overflow else 1.0)).backward()
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def save(self, path: Path) -> None:
        torch.save(self.state(), path)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "pruner": self.pruner.state_dict(),
            "scaler": self.scaler.state_dict(),
            "done": self.done,
            "sigmas": self.sigmas,
        }

    def load(self, path: Path, pruner: bool = True) -> "Run":
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        if pruner:
            self.pruner.load_state_dict(state["pruner"])
        self.scaler.load_state_dict(state["scaler"])
        self.done, self.sigmas = state["done"], state["sigmas"]
        return self


def same(one: Any, other: Any) -> bool:
    """Bit for bit, through nested dicts and lists."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


if __name__ == "__main__":
    recipe, checkpoint, outcome = sys.argv[1:]
    torch.set_num_threads(1)
    Run(recipe, seed=1).load(Path(checkpoint)).go().save(Path(outcome))
