"""How much can go? The highest sparsity whose loss stays within a budget, over retrained candidates."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from prunewald.pruner import Pruner
from prunewald.strategies.branches import Branches, Restorable
from prunewald.strategies.checks import as_number, check_functions
from prunewald.strategies.rounds import Round, SigmaFunction
from prunewald.strategies.tabular import Tabular
from prunewald.strategies.training_state import Stateful
from prunewald.util.arguments import real
from prunewald.util.files import FilePath
from prunewald.util.tables import Cells

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
class Search(Restorable, Tabular):
    """What a search tried and what it chose; prints as a table. `restore_(level)` goes to any of its candidates."""

    dense: float
    budget: float
    candidates: tuple[Candidate, ...]
    best: Candidate
    _left: ClassVar = (3,)

    def _title(self) -> str:
        return f"dense {self.dense:.4f}, budget {self.budget:g}"

    def _table(self) -> tuple[Cells, Sequence[Cells]]:
        rows = [(f"{c.sparsity:.2%}", f"{c.value:.4f}", f"{c.loss:+.4f}", self._mark(c)) for c in self.candidates]
        return ("sparsity", "value", "loss", ""), rows

    def _mark(self, candidate: Candidate) -> str:
        return "<- chosen" if candidate is self.best else "" if candidate.fits else "over budget"


def find_sparsity(
    pruner: Pruner,
    train: Callable[[Round], object],
    evaluate: Callable[[], float],
    *,
    budget: float,
    levels: Iterable[float] = LEVELS,
    estimate: SigmaFunction | None = None,
    folder: FilePath | None = None,
    also: Sequence[Stateful] = (),
) -> Search:
    """Prune the model as it is now to each level, retrain each, and leave it at the highest whose loss fits the budget.

    `evaluate` gives a number, higher is better, such as the accuracy on validation data; the loss is that of the
    dense model minus the candidate's. Every candidate starts from the same state: weights, optimizer, estimator, the
    copies that the Pruner follows, what is in `also` (an LR scheduler, a GradScaler), and torch's global random
    numbers. A DataLoader with a generator of its own, numpy
    and `random` are not set back: seed them in `train`, or each candidate sees other batches.

    The candidates are kept, and `search.restore_(0.8)` goes to one of them. With `folder` each is on disk as soon as it
    is finished, as `level-0.8.pt`, in which "model" is the state_dict, and the next start goes on after the last;
    another budget may be asked of the same candidates. Without, they are in a temporary folder for as long as the
    `Search` lives.
    """
    check_functions(evaluate=evaluate)
    budget = real("budget", budget, least=0, what="the loss to allow,")
    with Branches(pruner, train, lambda: _value(evaluate), levels, estimate, folder, also) as branches:
        dense = branches.dense
        if math.isnan(dense):
            raise ValueError("evaluate() gave NaN for the model before any pruning: there is nothing to compare with")
        found = [Candidate(level, value, dense - value, _fits(dense, value, budget)) for level, value in branches]
        fitting = [candidate for candidate in found if candidate.fits]
        if not fitting:
            tried = ", ".join(f"{c.sparsity:g} loses {c.loss:.4g}" for c in found)
            raise BudgetError(f"no level keeps the loss within {budget!r}: {tried}. Allow more, or try lower levels")
        best = max(fitting, key=lambda candidate: candidate.sparsity)
        branches.settle(best.sparsity)
    return Search(dense, budget, tuple(found), best).keeping(branches)


def _fits(dense: float, value: float, budget: float) -> bool:
    """Whether the loss is within the budget, up to float32's rounding: 0.90 - 0.89 is 0.01, and a little more."""
    least = dense - budget
    return value >= least or math.isclose(value, least, rel_tol=2e-7, abs_tol=2e-7 * abs(dense))


def _value(evaluate: Callable[[], float]) -> float:
    value = as_number(evaluate(), "evaluate()")
    if value is None:
        raise TypeError("evaluate() gave None, and should give a number, higher is better")
    return value
