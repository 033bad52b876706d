"""What is gathered from step to step: the estimator's state, and that of the statistic a criterion asked for."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from prunewald.core.base import Estimate, Online, Running, State, Statistic
from prunewald.core.weights import NotYet, Weight
from prunewald.model.optimizers import stepped_by
from prunewald.pruning.observing import Take
from prunewald.pruning.reaching import Reach
from prunewald.pruning.resuming import check_states, packed, unpacked
from prunewald.util.tensors import accumulator, dense
from prunewald.util.text import some
from prunewald.util.trees import copied

_R = TypeVar("_R", bound=Running)
_SHOWN = 3  # so many names are said
_UNKNOWN = "which weights are dead is not known ({}): pruner.observe(batches, loss) tells"
_LOOKED = {
    "sigma": "sigma is from the gradients of {:,} batches of data, by pruner.observe()",
    "statistic": "what the criterion goes by was gathered from {:,} batches of data, by pruner.observe()",
    "gradient": "the criterion goes by the mean gradient of {:,} batches of data, by pruner.observe()",
}


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
        *,
        aside: bool = False,
    ) -> None:
        self._params, self._owners, self._online, self._statistic = params, owners, online, statistic
        self._aside = aside  # nobody asked for the estimator: a checkpoint may do without its state
        self._at = {name: at for at in reversed(range(len(owners))) for name in owners[at]}
        self._optimizers = optimizers
        self.optimizers = {name: optimizers[at] for name, at in self._at.items()} if optimizers else {}  # by parameter
        self.restart()
        self._handles: list[Any] = []
        self._watch_(model)

    def _watch_(self, model: nn.Module) -> None:
        """Let both register hooks of their own on the model; on an error none stays."""
        try:
            for at, own in enumerate(self._owners):
                if self._online is not None:
                    self._handles += self._online.watch(model, own, partial(self._state_at, at))
                if self._statistic is not None:
                    self._handles += self._statistic.watch(model, own, partial(self._statistics_at, at))
        except Exception:
            self.release()
            raise

    def _state_at(self, at: int) -> State:
        return self._states[at]

    def _statistics_at(self, at: int) -> State:
        return self._statistics[at]

    def restart(self) -> None:
        """Forget all that was gathered, as after a pruning: it was of a model with other weights."""
        online, statistic, at = self._online, self._statistic, range(len(self._owners))
        self.looked: dict[str, int] = {}  # of how many batches that were only looked at something is
        self._gradients: dict[str, Tensor] = {}  # their mean gradient, by parameter
        self._stepped = False  # since then
        self._states: list[State] = [] if online is None else [online.init(self._own(i)) for i in at]
        self._statistics: list[State] = [] if statistic is None else [statistic.init(self._own(i)) for i in at]

    @contextmanager
    def observing(self, gradients: bool) -> Iterator[Take]:
        """Inside a with block, what is gathered is of data that are only looked at; on an error all is as it was.

        What it yields is given the gradients of each batch, or none of a forward pass. The statistic is of these data
        from then on, and sigma where the training has told of fewer gradients; with `gradients` their mean is kept.
        """
        online, statistic, at = _looking(self._online), _looking(self._statistic), range(len(self._owners))
        before = self._states, self._statistics
        fresh = [] if online is None else [online.init(self._own(i)) for i in at]
        self._statistics = before[1] if statistic is None else [statistic.init(self._own(i)) for i in at]
        sums: dict[str, Tensor] = {}
        told, batches = {"sigma": False, "statistic": False}, 0

        def take(found: Mapping[str, Tensor]) -> None:
            nonlocal batches
            batches += 1
            for i, owner in enumerate(self._owners):
                own, grads = self._own(i), {name: dense(found[name]) for name in owner if name in found}
                stepping = self._optimizers[i] if self._optimizers else None
                if online is not None:
                    told["sigma"] |= online.look_(fresh[i], own, grads, stepping)
                if statistic is not None:
                    told["statistic"] |= statistic.look_(self._statistics[i], own, grads, stepping)
                for name, grad in grads.items() if gradients else ():
                    sums[name] = sums[name].add_(grad) if name in sums else grad.to(accumulator(grad), copy=True)

        try:
            yield take
        except BaseException:
            self._states, self._statistics = before
            raise
        if not told["statistic"]:
            self._statistics = before[1]
        elif statistic is not None:
            for state in self._statistics:
                statistic.looked_(state)
        if online is not None and told["sigma"]:
            told["sigma"] = _most(online, fresh) > _most(online, before[0])
            self._states = fresh if told["sigma"] else before[0]
        self.looked = {what: batches for what, heard in told.items() if heard}
        self._gradients, self._stepped = {name: total.div_(batches) for name, total in sums.items()}, False
        self.looked |= {"gradient": batches} if sums else {}

    def update_(self, at: int, optimizer: Optimizer | None) -> None:
        """Take in a step of one optimizer."""
        self._gradients = {}  # it was that of other weights
        self.looked.pop("gradient", None)
        self._stepped = True
        if self._online is not None:
            self._online.update_(self._states[at], self._own(at), optimizer)
        if self._statistic is not None:
            self._statistic.update_(self._statistics[at], self._own(at), optimizer)

    def read(self, online: Online | None, reach: Reach | None = None) -> "Reading":
        """What is known of the weights now, after a check that the estimator can tell something.

        One that did not watch goes by what the optimizer keeps, or by what it was given.
        """
        self.optimizers = stepped_by(self._params, self._optimizers)
        statistics = {} if self._statistic is None else self._values(self._statistic)
        given = partial(
            Reading,
            statistics=statistics,
            gradients=self._gradients,
            looked=self._said_looked(online) if self.looked else (),
        )
        if online is None:
            return given(None, {}, {})
        if not online.learns:
            online.check({}, self._params)
            return given(online, {name: {} for name in self._params}, {})
        watched = online is self._online
        for name, param in self._params.items():
            if not param.requires_grad:
                raise ValueError(_untrained(name, "does not require gradients"))
            if watched and not self._aside and name not in self._at and name in self.optimizers:
                raise ValueError(
                    f"{name!r} was added to {type(self.optimizers[name]).__name__} after this Pruner was attached, so "
                    "nothing was gathered of it: make a new Pruner, or use criterion=Magnitude()"
                )
            if name not in (self._at if (watched and not self._aside) or not self._optimizers else self.optimizers):
                when = "was in no optimizer of this Pruner when it was attached" if watched else "is in no optimizer"
                raise ValueError(_untrained(name, when))
        states = dict.fromkeys(self._params, online.init(self._params))  # of what was added to an optimizer since, too
        if watched:
            states |= {name: self._states[at] for name, at in self._at.items()}
        for state in {id(state): state for state in states.values()}.values():
            try:
                online.check(state, self._params)
            except ValueError as error:
                raise NotYet(*error.args) from None
        return given(online, states, self.optimizers, reach=reach, patience=online.patience)

    def _said_looked(self, online: Online | None) -> list[str]:
        """Notes on what is of data that were only looked at."""
        closed = self._statistic is not None and self._statistic.by_inputs  # steps after it add nothing
        since = {"sigma": self._stepped, "statistic": self._stepped and not closed}
        return [
            _LOOKED[what].format(count) + (", and from the steps since" if since.get(what) else "")
            for what, count in self.looked.items()
            if what != "sigma" or (online is not None and online is self._online)
        ]

    def _values(self, statistic: Statistic) -> dict[str, Tensor]:
        """What the criterion's statistic has gathered, by parameter."""
        found = {name: statistic.value(self._statistics[at], name) for name, at in self._at.items()}
        return {name: statistic.merged(value) for name, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs of all states; tensors as they are and not as copies, masks packed.

        Each is a tuple: torch.distributed.checkpoint takes a tuple as one piece, so that it can be loaded where the
        present state holds other tensors, or none yet.
        """
        own = self._saved(self._online, self._states)
        found: dict[str, Any] = {"states": (), "aside": own} if self._aside else {"states": own}
        return (
            found if self._statistic is None else found | {"statistics": self._saved(self._statistic, self._statistics)}
        )

    def _saved(self, running: Running | None, states: Sequence[State]) -> tuple[State, ...]:
        return () if running is None else tuple(packed(running.saved(s, self._own(at))) for at, s in enumerate(states))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a saved state of another estimator or statistic, or of other optimizers."""
        asked = [] if self._aside else self._states
        check_states("estimator", unpacked(state["states"]), asked, self._owners, self._params)
        check_states("statistic", unpacked(state.get("statistics", ())), self._statistics, self._owners, self._params)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checked state."""
        if not self._aside:
            self._states = self._resumed(self._online, state["states"])
        elif self._fits(aside := unpacked(state.get("aside", ()))):
            self._states = self._resumed(self._online, aside)
        else:
            self.restart()
        self._statistics = self._resumed(self._statistic, state.get("statistics", ()))

    def _resumed(self, running: Running | None, saved: Sequence[State]) -> list[State]:
        found = copied(unpacked(saved))
        return [] if running is None else [running.resumed(one, self._own(at)) for at, one in enumerate(found)]

    def _fits(self, saved: Any) -> bool:
        """Whether states were saved with the same optimizers in the same order."""
        try:
            check_states("estimator", saved, self._states, self._owners, self._params)
        except ValueError:
            return False
        return True

    def seen(self) -> dict[str, int]:
        """Of how many gradients the estimator has an average of its own, by parameter."""
        online = self._online
        return {} if online is None else {n: k for state in self._states for n, k in online.seen(state).items()}

    def release(self) -> None:
        """Watch the model no more."""
        for handle in self._handles:
            handle.remove()

    def _own(self, at: int) -> dict[str, Tensor]:
        return {name: self._params[name] for name in self._owners[at]}


@dataclass(frozen=True)
class Reading:
    """What the estimator and the criterion's statistic tell at one pruning."""

    online: Online | None  # None: no sigma is wanted
    states: Mapping[str, State]  # of the estimator, by parameter
    optimizers: Mapping[str, Optimizer]  # by parameter; nothing where none steps it
    statistics: Mapping[str, Tensor]  # by parameter
    reach: Reach | None = None  # where gradients of the data arrived; None: the sigmas are given, and are all there is
    patience: int = 0  # how many steps no gradient may arrive at a weight before that is called dead
    unknown: dict[str, str] = field(default_factory=dict)  # why dead weights are not known, by parameter that was read
    gradients: Mapping[str, Tensor] = field(default_factory=dict)  # mean ones of data that were looked at, by parameter
    looked: Sequence[str] = ()  # notes on what is of such data

    def sigma(self, weight: Weight) -> Estimate:
        """What the estimator tells of a parameter."""
        assert self.online is not None
        optimizer, state = self.optimizers.get(weight.name), self.states[weight.name]
        weight.dead = None if self.reach is None else self.reach.dead(weight.name, self.patience)
        try:
            estimate = self.online.sigma(state, weight, optimizer)
        except ValueError as error:
            # One of several optimizers may step later than the others.
            raise error if optimizer is None or optimizer.state.get(weight.param) else NotYet(*error.args) from None
        dead = estimate.dead if weight.dead is None else weight.dead
        # Unless an earlier pruning cut it off, a tensor without any gradient is better an error than a mass pruning.
        if weight.alive is None and (self._idle(weight) if dead is None else bool(dead.all())):
            raise NotYet(_untrained(weight.name, "got no gradient (or none that its precision can hold)"))
        if weight.dead is None and self.reach is not None:
            why = self.online.blind(state, weight, optimizer)
            if why or dead is None:
                self.unknown[weight.name] = why or self.reach.why_not(weight.name)
                dead = None
        return Estimate(estimate.sigma, dead)

    def _idle(self, weight: Weight) -> bool:
        return self.reach is not None and self.reach.idle(weight.name)

    def notes(self) -> list[str]:
        """What is of data that were looked at; and that dead weights are not known, and why, where that is so."""
        found: dict[str, list[str]] = {}
        for name, why in self.unknown.items():
            found.setdefault(why, []).append(name)
        every = [
            why if len(names) == len(self.states) else f"{some(names, _SHOWN)}: {why}" for why, names in found.items()
        ]
        return [*self.looked, *([_UNKNOWN.format("; ".join(every))] if every else [])]

    def degrees(self) -> float | None:
        """The degrees of freedom of the estimator's z, the fewest of several optimizers; None where it is normal."""
        found = [] if self.online is None else [self.online.degrees(state) for state in self._distinct()]
        return min((degrees for degrees in found if degrees is not None), default=None)

    def averages(self) -> dict[str, Tensor]:
        """The weights that the standard errors are of, where these are not the model's own."""
        found: dict[str, Tensor] = {}
        for state in self._distinct():
            found |= {} if self.online is None else self.online.average(state)
        return found

    def _distinct(self) -> list[State]:
        """The states, each once: all parameters of one optimizer share the same."""
        return list({id(state): state for state in self.states.values()}.values())


def _looking(running: _R | None) -> _R | None:
    """What can take in data that are only looked at; None for what learns from steps alone."""
    return None if running is None or type(running).look_ is Running.look_ else running


def _most(online: Online, states: Sequence[State]) -> int:
    """Of how many gradients an estimator has an average of its own."""
    return max((count for state in states for count in online.seen(state).values()), default=0)


def _untrained(name: str, why: str) -> str:
    return f"{name!r} {why}, so nothing tells how certain it is: ignore={name!r}, or criterion=Magnitude()"
