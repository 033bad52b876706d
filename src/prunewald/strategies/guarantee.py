"""A sparsity with a guarantee: Learn-then-Test over candidates in a fixed order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunewald.pruner import Pruner
from prunewald.statistics import betting, drop_losses, exact_binomial, fixed_sequence
from prunewald.strategies.branches import Branches, Restorable
from prunewald.strategies.checks import check_functions
from prunewald.strategies.rounds import Round, SigmaFunction
from prunewald.strategies.search import LEVELS, BudgetError
from prunewald.strategies.tabular import Tabular
from prunewald.strategies.training_state import Stateful
from prunewald.util.arguments import real
from prunewald.util.files import FilePath
from prunewald.util.tables import Cells


@dataclass(frozen=True)
class Verdict:
    """A candidate that was tested: its mean loss on the calibration data, and the p-value of "it is over budget".

    `test` says whose p-value it is: "binomial" for an error whose losses are all 0 or 1, otherwise "betting".
    """

    sparsity: float
    loss: float
    p: float
    test: str


@dataclass(frozen=True)
class Certificate(Restorable, Tabular):
    """With probability at least 1 - delta, the model at `sparsity` keeps the budget over the population.

    `of` says what is budgeted: the "error", or its "drop", how much it rises above the dense model's. `over` says what
    the probability is over: had other calibration examples been drawn from the same population, for the same model and
    candidates, a share delta of the draws at most would leave a model over budget. `tested` has a verdict for every
    candidate up to the first that failed, and `restore_(level)` goes to any of them.
    """

    sparsity: float
    of: str
    budget: float
    delta: float
    over: str
    tested: tuple[Verdict, ...]

    _left = (3,)

    def _title(self) -> str:
        return (
            f"at {self.sparsity:.2%} the {self.of} is at most {self.budget:g}, with probability at least "
            f"{1 - self.delta:g}\nover {self.over}"
        )

    def _table(self) -> tuple[Cells, Sequence[Cells]]:
        rows = [(f"{one.sparsity:.2%}", f"{one.loss:.4f}", f"{one.p:.2g}", one.test) for one in self.tested]
        return ("sparsity", self.of, "p", "test"), rows


def certify_sparsity(
    pruner: Pruner,
    train: Callable[[Round], object],
    losses: Callable[[], Tensor],
    *,
    error: float | None = None,
    drop: float | None = None,
    delta: float = 0.05,
    levels: Iterable[float] = LEVELS,
    estimate: SigmaFunction | None = None,
    folder: FilePath | None = None,
    also: Sequence[Stateful] = (),
) -> Certificate:
    """The highest sparsity that a test, not hope, finds within a budget.  Angelopoulos et al. (2021).

    `losses` gives the loss of the model for each example of the calibration data, within [0, 1], such as 0 or 1 for
    right or wrong. `error` bounds its mean over the population, `drop` how much that may rise above the dense model's.
    With probability at least 1 - delta over the draw of the calibration data, the model that is left keeps the budget.

    It holds as long as `train` and all choices before it never saw the calibration data. The levels are tested in their
    order, which is fixed beforehand; the first that fails ends the search, so later ones are not even trained. The rest
    is as in `find_sparsity`.

    An error is tested by `statistics.exact_binomial` where all losses are 0 or 1, which is taken to be so for every
    example there is; other errors, and drops, by `statistics.betting`. The fewer examples pruning changes, the fewer a
    drop takes.
    """
    check_functions(losses=losses)
    of, budget = _budget(error, drop)
    delta = real("delta", delta, above=0, below=1, what="the chance of a wrong choice to allow,")

    def measure() -> Tensor:
        return torch.as_tensor(losses(), device="cpu").detach().double()

    settings = {"error": None, "drop": None, "delta": delta} | {of: budget}
    with Branches(pruner, train, measure, levels, estimate, folder, also, **settings) as branches:
        tested, last = _tested(branches, of, budget, delta)
        if last is None:
            first = tested[0]
            raise BudgetError(
                f"not even {first.sparsity:g} is within {of}={budget!r} at delta={delta!r} ({of} {first.loss:.4g} on "
                f"the data, p {first.p:.2g}): allow more, calibrate on more data, or begin with a lower level"
            )
        chosen = tested[last].sparsity
        branches.settle(chosen)
    over = f"draws of {len(branches.dense):,} calibration examples, for this model and these candidates, fixed before"
    return Certificate(chosen, of, budget, delta, over, tuple(tested)).keeping(branches)


def _budget(error: float | None, drop: float | None) -> tuple[str, float]:
    """What is budgeted, and the budget. An error of 0 is refused, since no sample could show it."""
    if (error is None) == (drop is None):
        raise ValueError(f"error={error!r}, drop={drop!r}: the budget is one of them")
    if drop is None:
        return "error", real("error", error, above=0, below=1, what="the budget,")
    return "drop", real("drop", drop, least=0, below=1, what="the budget,")


def _tested(branches: Branches, of: str, budget: float, delta: float) -> tuple[list[Verdict], int | None]:
    """The verdicts up to the first that fails, and the index of the last that passes; None where the first fails."""
    test = _test_of_error if of == "error" else _test_of_drop
    test(0.0, branches.dense, branches.dense, budget, delta)  # refuses what cannot be tested before any training
    tested: list[Verdict] = []

    def p_values() -> Iterator[float]:
        for level, losses in branches:
            tested.append(test(level, losses, branches.dense, budget, delta))
            yield tested[-1].p

    return tested, fixed_sequence(p_values(), delta)


def _test_of_error(level: float, losses: Tensor, dense: Tensor, budget: float, delta: float) -> Verdict:
    """Test the hypothesis that a candidate's error is over budget."""
    mean = float(losses.mean())
    if bool(((losses == 0) | (losses == 1)).all()):
        return Verdict(level, mean, exact_binomial(losses, budget), "binomial")
    return Verdict(level, mean, betting(losses, budget, delta), "betting")


def _test_of_drop(level: float, losses: Tensor, dense: Tensor, budget: float, delta: float) -> Verdict:
    """Test the hypothesis that a candidate's error is over the dense model's by more than the budget."""
    p = betting(drop_losses(losses, dense), (budget + 1) / 2, delta)
    return Verdict(level, float((losses - dense).mean()), p, "betting")
