"""The shape of an online estimator: it watches optimizer steps and tells how sure each weight is."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.weights import Weight

State: TypeAlias = dict[str, Any]  # tensors, numbers, and dicts and lists of them: it goes into state_dict() as it is


class Estimate(NamedTuple):
    """Sigma of one parameter, and where no gradient arrived (None: unknown)."""

    sigma: Tensor
    dead: Tensor | None


class Online(Protocol):
    """Recipe only: all that changes is in the state, which the Pruner holds."""

    def init(self) -> State:
        """The state before the first step."""

    def update_(self, state: State, weights: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        """Take in one optimizer step; called after it, with `.grad` still there."""

    def check(self, state: State) -> None:
        """Raise where no sigma can be given yet, warn where it is not what was asked for."""

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The estimate for one parameter; the state stays as it is."""
