"""The learning rate of a retraining, as a factor of the one the training began with."""

from typing import Any

from prunewald.pruner import Pruner
from prunewald.strategies.checkpoint import set_option_
from prunewald.util.arguments import real
from prunewald.util.trees import copied


class LearningRates:
    """Sets the learning rate of every parameter group to a factor of what it was at the start.

    `start` has the rate of each group before any scheduler changed it: schedulers keep that as `initial_lr`.
    """

    def __init__(self, pruner: Pruner, factor: float) -> None:
        self._pruner = pruner
        self.start = [copied(group.get("initial_lr", group["lr"])) for group in self._groups()]
        self.factor = real("lr_factor", factor, above=0, what="the factor of the learning rate,")
        if not self.start:
            raise ValueError(f"lr_factor={factor!r}: this Pruner has no optimizer, whose learning rate it could change")
        if not any(self.start):
            raise ValueError(f"lr_factor={factor!r} times the optimizer's learning rate of 0 is 0: set that rate first")

    def rescale_(self) -> None:
        """Set the rates; also those that the next scheduler begins with."""
        for group, rate in zip(self._groups(), self.start, strict=True):
            for key in group.keys() & {"lr", "initial_lr"}:
                set_option_(group, key, rate * self.factor)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._pruner.optimizers for group in optimizer.param_groups]
