"""What is gathered from step to step: the estimator's state, and that of the statistic a criterion asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.criteria import Statistic
from prunewald.core.weights import NotYet, Weight
from prunewald.pruning.checks import check_state, copied
from prunewald.uncertainty import Estimate, Online, SecondMoment


class Watcher:
    """Runs an online estimator and a statistic over the steps of each optimizer, and holds their states."""

    def __init__(
        self,
        model: nn.Module,
        params: Mapping[str, Tensor],
        owners: Sequence[Sequence[str]],
        online: Online | None,
        statistic: Statistic | None,
    ) -> None:
        self._params, self._owners, self._online, self._statistic = params, owners, online, statistic
        self.restart()
        self._handles: list[Any] = []
        if statistic is not None and hasattr(statistic, "watch"):
            try:
                for at, own in enumerate(owners):
                    self._handles += statistic.watch(model, list(own), lambda at=at: self.gathered[at])
            except ValueError:
                self.release()
                raise

    def restart(self) -> None:
        """Begin anew, as after a pruning: what was gathered was of another model."""
        self.states = [] if self._online is None else [self._online.init() for _ in self._owners]
        statistic = self._statistic
        self.gathered = [] if statistic is None else [statistic.init(self._own(at)) for at in range(len(self._owners))]

    def update_(self, at: int, optimizer: Optimizer | None) -> None:
        """Take in a step of one optimizer."""
        if self._online is not None:
            self._online.update_(self.states[at], self._own(at), optimizer)
        if self._statistic is not None:
            self._statistic.update_(self.gathered[at], self._own(at), optimizer)

    def check(self) -> None:
        """Raise NotYet where the estimator can tell nothing."""
        if self._online is not None:
            for state, own in zip(self.states, self._owners, strict=True):
                if own:
                    _check(self._online, state)

    def estimate(self, weight: Weight, optimizer: Optimizer | None) -> Estimate:
        """What the estimator tells of a parameter; without one, what the optimizer's own second moment does."""
        online = self._online or SecondMoment()
        state = self.states[self._at(weight.name)] if self._online else online.init()
        param = self._params[weight.name]
        try:
            return online.sigma(state, weight if weight.param is param else replace(weight, param=param), optimizer)
        except ValueError as error:
            # One of several optimizers may step later than the others.
            raise error if optimizer is None or optimizer.state.get(param) else NotYet(*error.args) from None

    def statistic(self, name: str) -> Tensor | None:
        """The criterion's statistic of one parameter."""
        if self._statistic is None or not any(name in own for own in self._owners):
            return None
        return self._statistic.value(self.gathered[self._at(name)], name)

    def degrees(self) -> float | None:
        """Of freedom, where the estimator's z is t-distributed: the fewest of several."""
        degrees = getattr(self._online, "degrees", None)
        owned = [state for state, own in zip(self.states, self._owners, strict=False) if own]
        return None if degrees is None else min(map(degrees, owned))

    def averages(self) -> dict[str, Tensor]:
        """The weights that the estimator's standard errors are of, where these are not the model's own."""
        average = getattr(self._online, "average", None)
        found: dict[str, Tensor] = {}
        for state, own in zip(self.states, self._owners, strict=False):
            if average is not None and own:
                found |= average(state)
        return found

    def state_dict(self) -> dict[str, Any]:
        """All states: the living ones."""
        return {"states": self.states} | ({} if self._statistic is None else {"statistics": self.gathered})

    def check_state(self, state: Mapping[str, Any]) -> None:
        """A saved state must be of the same kind, on the same optimizers."""
        check_state("estimator", state["states"], self.states, self._owners, self._params)
        check_state("statistic", state.get("statistics", []), self.gathered, self._owners, self._params)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checked state."""
        self.states, self.gathered = copied(state["states"]), copied(state.get("statistics", []))

    def release(self) -> None:
        """Watch the model no more."""
        for handle in self._handles:
            handle.remove()

    def _at(self, name: str) -> int:
        return next(i for i, own in enumerate(self._owners) if name in own)

    def _own(self, at: int) -> dict[str, Tensor]:
        return {name: self._params[name] for name in self._owners[at]}


def _check(online: Online, state: dict[str, Any]) -> None:
    try:
        online.check(state)
    except ValueError as error:
        raise NotYet(*error.args) from None
