"""A way of holding that records when it acts, and a schedule with the levels it should reach."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import prunewald as pw
from prunewald.pruning.holding.holding import Holding
from tests.training import one_step

CUBIC = pw.Cubic(0.8, begin=2, end=9, every=3, initial=0.1)
# Zhu & Gupta (2017), eq. 1: s_f + (s_i - s_f)(1 - (t - t0) / (n Δt))³.
LEVELS = {step: 0.8 + (0.1 - 0.8) * (1 - (step - 2) / 7) ** 3 for step in (2, 5, 8, 9)}


class Recording(Holding):
    """Writes down each time it is called, and for which parameters."""

    def __init__(self, name: str = "", events: list[str] | None = None) -> None:
        self.name, self.events = name, [] if events is None else events

    def ready_(self, names: Collection[str]) -> None:
        self.note("ready", *names)

    def settle_(self, names: Collection[str]) -> None:
        self.note("settle", *names)

    def end_(self) -> None:
        self.note("end")

    @contextmanager
    def in_sight(self) -> Iterator[None]:
        self.note("seen")
        yield
        self.note("unseen")

    def note(self, *words: str) -> None:
        self.events.append(" ".join(filter(None, [self.name, *words])))

    def taken(self) -> list[str]:
        """What was recorded since this was last asked."""
        found = self.events[:]
        self.events.clear()
        return found


def go(pruner: pw.Pruner, steps: range, step: Any = one_step) -> None:
    """Train the model of a Pruner by its first optimizer."""
    for number in steps:
        step(pruner.model, pruner.optimizers[0], number)


def adam(model: nn.Module) -> Optimizer:
    """An optimizer that keeps a second moment."""
    return torch.optim.Adam(model.parameters(), lr=0.01)
