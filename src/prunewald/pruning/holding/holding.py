"""The shape of a way of holding weights."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar


class Holding(ABC):
    """Keeps weights where they should be while a user's own loop trains them, beside the zeros of a pruning.

    Around each step of an optimizer, for the parameters that it moves: `ready_` before it, `settle_` after it and after
    all that a Pruner does then. Where the loop gives the step a closure, the weights are settled whenever that is
    called, and ready again when it is done.
    """

    competes: ClassVar[bool] = False  # whether pruned weights still have values, by which they may be chosen again

    @abstractmethod
    def ready_(self, names: Collection[str]) -> None:
        """Prepare weights and gradients of these parameters for the optimizer to move them."""

    @abstractmethod
    def settle_(self, names: Collection[str]) -> None:
        """Give the weights the values that the model is to compute with."""

    def in_sight(self) -> AbstractContextManager[Any]:
        """For a while, the weights as the optimizer moves them, where that is what a criterion should see."""
        return nullcontext()

    def end_(self) -> None:
        """Act no more: the weights keep the values they have."""
