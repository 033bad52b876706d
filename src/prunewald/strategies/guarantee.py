"""A sparsity with a guarantee: Learn-then-Test over candidates in a fixed order."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from prunewald.pruner import Pruner
from prunewald.statistics.learn_then_test import drop_losses, fixed_sequence, hoeffding_bentkus
from prunewald.strategies.branches import Branches, Restorable
from prunewald.strategies.checks import check_functions, real
from prunewald.strategies.rounds import Round, SigmaFunction
from prunewald.strategies.search import LEVELS, BudgetError
from prunewald.util.files import FilePath


@dataclass(frozen=True)
class Verdict:
    """A candidate that was tested: its mean loss on the calibration data, and the p-value that it is over budget."""

    sparsity: float
    loss: float
    p: float


@dataclass(frozen=True)
class Certificate(Restorable):
    """With probability at least 1 - delta, the model at `sparsity` keeps the budget over the population.

    `of` says what is budgeted: the "error", or its "drop", how much it rises above the dense model's. `restore_(level)`
    goes to any candidate that was tested.
    """

    sparsity: float
    of: str
    budget: float
    delta: float
    tested: tuple[Verdict, ...]

    def __str__(self) -> str:
        head = f"{'sparsity':>8}  {self.of:>8}  {'p':>8}"
        lines = [f"{c.sparsity:8.2%}  {c.loss:8.4f}  {c.p:8.2g}" for c in self.tested]
        claim = f"at {self.sparsity:.2%} the {self.of} is at most {self.budget:g}, with probability {1 - self.delta:g}"
        return "\n".join([claim, head, "-" * len(head), *lines])


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
) -> Certificate:
    """The highest sparsity that a test, not hope, finds within a budget.  Angelopoulos et al. (2021).

    `losses` gives the loss of the model for each example of the calibration data, within [0, 1], such as 0 or 1 for
    right or wrong. `error` bounds its mean over the population, `drop` how much that may rise above the dense model's.
    With probability at least 1 - delta over the draw of the calibration data, the model that is left keeps the budget.

    It holds as long as `train` and all choices before it never saw the calibration data. The levels are tested in their
    order, which is fixed beforehand; the first that fails ends the search, so later ones are not even trained. The rest
    is as in `find_sparsity`.
    """
    check_functions(losses=losses)
    of, budget = _budget(error, drop)
    delta = real("delta", delta, "the chance of a wrong choice to allow")
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta!r}: must lie between 0 and 1")

    def measure() -> Tensor:
        return torch.as_tensor(losses()).detach().cpu().double()

    settings = {"error": None, "drop": None, "delta": delta} | {of: budget}
    with Branches(pruner, train, measure, levels, estimate, folder, **settings) as run:
        _test(0.0, run.dense, run.dense, of, budget)  # losses that cannot be tested are found before any training
        tested: list[Verdict] = []

        def p_values() -> Iterator[float]:
            for level, found in run:
                tested.append(_test(level, found, run.dense, of, budget))
                yield tested[-1].p

        last = fixed_sequence(p_values(), delta)
        if last is None:
            first = tested[0]
            raise BudgetError(
                f"not even {first.sparsity:g} is within {of}={budget!r} at delta={delta!r} ({of} {first.loss:.4g} on "
                f"the data, p {first.p:.2g}): allow more, calibrate on more data, or begin with a lower level"
            )
        chosen = tested[last].sparsity
        run.settle(chosen)
    return Certificate(chosen, of, budget, delta, tuple(tested)).keeping(run)


def _budget(error: float | None, drop: float | None) -> tuple[str, float]:
    if (error is None) == (drop is None):
        raise ValueError(f"error={error!r}, drop={drop!r}: the budget is one of them")
    of, given = ("error", error) if drop is None else ("drop", drop)
    budget = real(of, given, "the budget")
    if not 0 <= budget < 1 or (of == "error" and budget == 0):
        raise ValueError(f"{of}={budget!r}: must lie between 0 and 1")
    return of, budget


def _test(level: float, losses: Tensor, dense: Tensor, of: str, budget: float) -> Verdict:
    """The hypothesis that a candidate is over budget."""
    if of == "error":
        return Verdict(level, float(losses.mean()), hoeffding_bentkus(losses, budget))
    p = hoeffding_bentkus(drop_losses(losses, dense), (budget + 1) / 2)
    return Verdict(level, float((losses - dense).mean()), p)
