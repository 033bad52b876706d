"""How much can go? The highest sparsity whose loss stays within a budget, over retrained candidates."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prunewald.files import FilePath
from prunewald.pruner import Pruner
from prunewald.strategies.checkpoint import Folder, State, restore_, take
from prunewald.strategies.iterative import Estimate, Round, checked_levels, number, plan, prune

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


class BudgetError(ValueError):
    """No candidate stays within the budget. The model is as it was before the search."""


@dataclass(frozen=True)
class Candidate:
    """One level, pruned and retrained: what it scored, and what that lost against the dense model."""

    sparsity: float
    value: float
    loss: float
    fits: bool


@dataclass(frozen=True)
class Search:
    """What a search tried and what it chose; prints as a table."""

    dense: float
    budget: float
    candidates: tuple[Candidate, ...]
    best: Candidate

    def __str__(self) -> str:
        head = f"{'sparsity':>8}  {'value':>8}  {'loss':>8}"
        lines = [f"{c.sparsity:8.2%}  {c.value:8.4f}  {c.loss:+8.4f}{_mark(c, self.best)}" for c in self.candidates]
        return "\n".join([f"dense {self.dense:.4f}, budget {self.budget:g}", head, "-" * len(head), *lines])


def find_sparsity(
    pruner: Pruner,
    train: Callable[[Round], object],
    evaluate: Callable[[], float],
    *,
    budget: float,
    levels: Iterable[float] = LEVELS,
    estimate: Estimate | None = None,
    folder: FilePath | None = None,
) -> Search:
    """Prune the model as it is now to each level, retrain each, and leave it at the highest whose loss fits the budget.

    `evaluate` gives a number, higher is better, such as the accuracy on validation data; the loss is that of the
    dense model minus the candidate's. Every candidate starts from the same state: weights, optimizer, estimator and
    torch's global random numbers. With `folder` each is kept there as it is finished, as `level-0.9.pt`, in which
    "model" is the state_dict, and the next start goes on after the last; another budget may be asked of the same
    candidates. Without, they are kept in memory.
    """
    if not budget >= 0:
        raise ValueError(f"budget={budget!r}: the loss to allow must be at least 0")
    with Candidates(pruner, train, lambda: _value(evaluate), levels, estimate, folder) as run:
        if math.isnan(run.dense):
            raise ValueError("evaluate() gave NaN for the model before any pruning: there is nothing to compare with")
        found = [Candidate(level, value, run.dense - value, run.dense - value <= budget) for level, value in run]
        fitting = [candidate for candidate in found if candidate.fits]
        if not fitting:
            tried = ", ".join(f"{c.sparsity:g} loses {c.loss:.4g}" for c in found)
            raise BudgetError(f"no level keeps the loss within {budget!r}: {tried}. Allow more, or try lower levels")
        best = max(fitting, key=lambda candidate: candidate.sparsity)
        run.settle(best.sparsity)
    return Search(run.dense, budget, tuple(found), best)


class Candidates:
    """Trains the candidates of a search one by one, each from the same start, and keeps them all.

    Iterating gives each level with what was measured, from the folder where it is there already. What measuring does to
    the model or to a statistic stays out of it. As a context, any error leaves the model as it was given.
    """

    def __init__(
        self,
        pruner: Pruner,
        train: Callable[[Round], object],
        measure: Callable[[], Any],
        levels: Iterable[float],
        estimate: Estimate | None,
        folder: FilePath | None,
        **settings: float | None,
    ) -> None:
        self._pruner, self._train, self._measure, self._estimate = pruner, train, measure, estimate
        self._levels = checked_levels(pruner, levels)
        self._folder = Folder(folder, plan(pruner, self._levels, estimate) | settings)
        self._start = self._folder.load("start") or self._keep("start")
        self.dense: Any = self._start["measured"]

    def __enter__(self) -> "Candidates":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.settle(None)

    def __iter__(self) -> Iterator[tuple[float, Any]]:
        for index, level in enumerate(self._levels, 1):
            state = self._folder.load(_name(level))
            if state is None:
                restore_(self._pruner, self._start)
                self._train(Round(index, level, prune(self._pruner, level, self._estimate)))
                state = self._keep(_name(level))
            yield level, state["measured"]

    def _keep(self, name: str) -> State:
        state = take(self._pruner) | {"measured": self._measure()}
        self._folder.save(name, state)
        return state

    def settle(self, level: float | None) -> None:
        """Leave the model at a candidate, or as it was before."""
        state = self._start if level is None else self._folder.load(_name(level))
        assert state is not None
        restore_(self._pruner, state)


def _value(evaluate: Callable[[], float]) -> float:
    value = number(evaluate(), "evaluate()")
    if value is None:
        raise TypeError("evaluate() gave None, and should give a number, higher is better")
    return value


def _name(level: float) -> str:
    return f"level-{float(level)!r}"


def _mark(candidate: Candidate, best: Candidate) -> str:
    return "  <- chosen" if candidate is best else "" if candidate.fits else "  over budget"
