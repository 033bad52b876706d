"""Sigmas that the user brings, from an offline estimator or from anywhere."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.core.base import Estimate, Online, State, Weights
from prunewald.core.weights import Weight
from prunewald.uncertainty.diagnosis import Sigmas
from prunewald.util.registry import wraps
from prunewald.util.tensors import accumulator


class Given(Online):
    """A dict of sigma by parameter name, in the shape of an estimator that has nothing to watch."""

    learns: ClassVar[bool] = False

    def __init__(self, sigmas: Mapping[str, Tensor]) -> None:
        self.sigmas = sigmas
        self.notes = sigmas.notes if isinstance(sigmas, Sigmas) else ()

    def init(self, weights: Weights) -> State:
        """There is nothing to gather."""
        return {}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """There is nothing to gather."""

    def check(self, state: State, weights: Weights) -> None:
        """There must be one sigma for each weight, and none may be negative."""
        for name, param in weights.items():
            if name not in self.sigmas:
                raise ValueError(
                    f"uncertainty has no sigma for {name!r}; it has {sorted(self.sigmas)}: add it, or ignore={name!r}"
                )
            sigma = torch.as_tensor(self.sigmas[name], device=param.device)
            if sigma.shape != param.shape:
                raise ValueError(
                    f"uncertainty for {name!r} has shape {tuple(sigma.shape)}, the parameter has "
                    f"{tuple(param.shape)}: give one sigma for each weight"
                )
            if not bool((sigma >= 0).all()):
                raise ValueError(
                    f"uncertainty for {name!r} has NaN or negative entries: a sigma is at least 0. Where nothing is "
                    "known give torch.inf, as by sigma.nan_to_num(nan=torch.inf), or estimate with inverse='damped'"
                    f"{self._diagnosis()}"
                )

    def sigma(self, state: State, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """The sigma given; which weights are dead is not known."""
        sigma = torch.as_tensor(self.sigmas[weight.name], device=weight.param.device)
        return Estimate(sigma.to(accumulator(weight.param)), None)

    @property
    def standard_error(self) -> bool:
        """Where an estimator of standard errors made them; of other sigmas it is not known."""
        return isinstance(self.sigmas, Sigmas) and not self.sigmas.untested

    def degrees(self, state: State) -> float | None:
        """The degrees of freedom that the estimator found, as of a least-squares fit; None where z is normal."""
        return self.sigmas.degrees if isinstance(self.sigmas, Sigmas) else None

    def caveats(self) -> list[str]:
        """That nothing is known of the sigmas, where no estimator made them; an error where one says they are none."""
        if not isinstance(self.sigmas, Sigmas):
            return ["p-values are as good as the sigma that was given: they need standard errors"]
        if self.sigmas.untested:
            raise ValueError(f"alpha= and fdr= test weights by standard errors; {self.sigmas.untested}")
        return [self.sigmas.caveat] if self.sigmas.caveat else []

    def _diagnosis(self) -> str:
        return f"; its diagnosis:\n{self.sigmas.diagnosis}" if isinstance(self.sigmas, Sigmas) else ""

    def __repr__(self) -> str:
        return f"a dict of {len(self.sigmas)} tensors"


wraps("uncertainty", lambda given: Given(given) if isinstance(given, Mapping) else None)
