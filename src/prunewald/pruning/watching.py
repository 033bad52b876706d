"""What is gathered from step to step: the estimator's state, and that of the statistic a criterion asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.base import Estimate, Online, Running, State, Statistic
from prunewald.core.weights import NotYet, Weight
from prunewald.pruning.resuming import check_states
from prunewald.util.trees import copied


class Watcher:
    """Runs an online estimator and a statistic over the steps of each optimizer, and holds their states.

    `owners` are, for each optimizer, the names of the parameters it steps; without optimizers there is one owner, the
    user's own step.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
        owners: Sequence[Sequence[str]],
        online: Online | None,
        statistic: Statistic | None,
    ) -> None:
        self._params, self._optimizers, self._owners = params, optimizers, owners
        self._online, self._statistic = online, statistic
        self._at = {name: at for at in reversed(range(len(owners))) for name in owners[at]}
        self.restart()
        self._handles: list[Any] = []
        if statistic is not None:
            self._watch_(model, statistic)

    def _watch_(self, model: nn.Module, statistic: Statistic) -> None:
        try:
            for at, own in enumerate(self._owners):
                self._handles += statistic.watch(model, own, lambda at=at: self._statistics[at])
        except ValueError:
            self.release()
            raise

    def restart(self) -> None:
        """Begin anew, as after a pruning: what was gathered was of another model."""
        self._states, self._statistics = self._fresh(self._online), self._fresh(self._statistic)

    def _fresh(self, recipe: Running | None) -> list[State]:
        return [] if recipe is None else [recipe.init(self._own(at)) for at in range(len(self._owners))]

    def update_(self, at: int, optimizer: Optimizer | None) -> None:
        """Take in a step of one optimizer."""
        if self._online is not None:
            self._online.update_(self._states[at], self._own(at), optimizer)
        if self._statistic is not None:
            self._statistic.update_(self._statistics[at], self._own(at), optimizer)

    def optimizer_of(self, name: str) -> Optimizer | None:
        """The optimizer that steps a parameter, if any does."""
        return self._optimizers[self._at[name]] if self._optimizers and name in self._at else None

    def check(self, online: Online) -> None:
        """Raise where an estimator can tell nothing: NotYet if more training may help."""
        if not online.learns:
            online.check({}, self._params)
            return
        for name, param in self._params.items():
            if not param.requires_grad:
                raise ValueError(_untrained(name, "does not require gradients"))
            if name not in self._at:
                raise ValueError(_untrained(name, "was in no optimizer of this Pruner when it was attached"))
        for at, names in enumerate(self._owners):
            if names:
                state = self._states[at] if online is self._online else online.init(self._own(at))
                try:
                    online.check(state, self._own(at))
                except ValueError as error:
                    raise NotYet(*error.args) from None

    def sigma(self, online: Online, weight: Weight) -> Estimate:
        """What an estimator tells of a parameter; one that did not watch goes by what the optimizer keeps."""
        name, optimizer = weight.name, self.optimizer_of(weight.name)
        state = self._states[self._at[name]] if online is self._online else online.init({})
        try:
            estimate = online.sigma(state, weight, optimizer)
        except ValueError as error:
            # One of several optimizers may step later than the others.
            raise error if optimizer is None or optimizer.state.get(weight.param) else NotYet(*error.args) from None
        # Unless an earlier pruning cut it off, a tensor without any gradient is better an error than a mass pruning.
        if weight.alive is None and estimate.dead is not None and bool(estimate.dead.all()):
            raise NotYet(_untrained(name, "got no gradient (or none that its precision can hold)"))
        return estimate

    def statistic(self, name: str) -> Tensor | None:
        """The criterion's statistic of one parameter."""
        if self._statistic is None or name not in self._at:
            return None
        return self._statistic.value(self._statistics[self._at[name]], name)

    def degrees(self, online: Online) -> float | None:
        """The degrees of freedom of an estimator's z, the fewest of several optimizers; None where it is normal."""
        found = [online.degrees(state) for state in self._owned_states(online)]
        return min((degrees for degrees in found if degrees is not None), default=None)

    def averages(self, online: Online) -> dict[str, Tensor]:
        """The weights that an estimator's standard errors are of, where these are not the model's own."""
        found: dict[str, Tensor] = {}
        for state in self._owned_states(online):
            found |= online.average(state)
        return found

    def _owned_states(self, online: Online) -> list[State]:
        if online is not self._online:
            return []
        return [state for state, own in zip(self._states, self._owners, strict=True) if own]

    def state_dict(self) -> dict[str, Any]:
        """All states: the living ones."""
        return {"states": self._states} | ({} if self._statistic is None else {"statistics": self._statistics})

    def check_state(self, state: Mapping[str, Any]) -> None:
        """A saved state must be of the same kind, on the same optimizers."""
        check_states("estimator", state["states"], self._states, self._owners, self._params)
        check_states("statistic", state.get("statistics", []), self._statistics, self._owners, self._params)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checked state."""
        self._states, self._statistics = copied(state["states"]), copied(state.get("statistics", []))

    def release(self) -> None:
        """Watch the model no more."""
        for handle in self._handles:
            handle.remove()

    def _own(self, at: int) -> dict[str, Tensor]:
        return {name: self._params[name] for name in self._owners[at]}


def _untrained(name: str, why: str) -> str:
    return f"{name!r} {why}, so nothing tells how certain it is: ignore={name!r}, or criterion=Magnitude()"
