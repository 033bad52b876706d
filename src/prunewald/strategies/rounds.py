"""Iterative pruning: prune a little, train, and again, through rising levels."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from torch import Tensor

from prunewald.core.base import Online
from prunewald.core.weights import NotYet
from prunewald.pruner import Pruner
from prunewald.pruning.report import Report
from prunewald.strategies.checkpoint import Rewind
from prunewald.strategies.checks import as_number, check_functions, check_pruner, checked_levels
from prunewald.strategies.dropout import Dropouts
from prunewald.strategies.learning_rates import LearningRates
from prunewald.strategies.run_folder import RunFolder
from prunewald.strategies.training_state import TrainingState, restore_, take
from prunewald.util.files import FilePath
from prunewald.util.registry import brief

SigmaFunction: TypeAlias = Callable[[], Mapping[str, Tensor]]  # gives sigma by parameter name, fresh at each call


@dataclass
class Round:
    """One level of an iterative pruning: what was pruned, and what the training after it returned.

    `index` counts the rounds from 1; `sparsity` is the level that was asked for, and `report` tells what it came to.
    """

    index: int
    sparsity: float
    report: Report
    result: float | None = None


def iterative(
    pruner: Pruner,
    levels: Iterable[float],
    train: Callable[[Round], float | None],
    *,
    estimate: SigmaFunction | None = None,
    rewind: Callable[[], None] | None = None,
    lr_factor: float | None = None,
    dropout: bool | Mapping[str, str] = False,
    folder: FilePath | None = None,
) -> list[Round]:
    """Prune to each level in turn, and train after each; return all rounds.  Han et al. (2015).

    `train` is the user's own: it is called with the round after its pruning, and may return a number to keep, such as
    an accuracy. An online estimator collects while it trains, so sigma is of the survivors; an offline one is called
    anew before every pruning by `estimate`, which returns its sigmas.

    - `rewind`: called after each pruning, as `Checkpoint(model, optimizer).weights_` or `.lr_`; the zeros stay.
    - `lr_factor`: each retraining begins with this factor of the optimizer's learning rate (where a scheduler has
      changed that, of the one it began with); Han takes a tenth. With None the rate stays what it is, which after a
      decay inside `train` is little.
    - `dropout`: lower the rate of every dropout module by sqrt(kept / all) of the layer before it, as Han does: of all
      its weights, also those that were pruned before. True goes by the order in which the model holds its modules, and
      where that layer is no target the rate stays; a dict says for each dropout module which layer it is.
    - `folder`: every finished round is kept there, and the next start goes on after the last one, whatever the model
      is by then; to rewind to a checkpoint, take that again. The rounds returned include those from the folder. The
      folder also keeps the copies that the Pruner follows and torch's global random numbers, but no others, such as
      those of a DataLoader with a generator of its own.
    """
    check_functions(train=train)
    return _Run(pruner, levels, estimate, rewind, lr_factor, dropout, folder).go(train)


class _Run:
    """An iterative pruning, checked and ready to go on from where its folder ends."""

    def __init__(
        self,
        pruner: Pruner,
        levels: Iterable[float],
        estimate: SigmaFunction | None,
        rewind: Callable[[], None] | None,
        lr_factor: float | None,
        dropout: bool | Mapping[str, str],
        folder: FilePath | None,
    ) -> None:
        check_pruner(pruner)
        self._pruner, self._estimate, self._rewind = pruner, estimate, rewind
        self._levels = checked_levels(pruner, levels)
        check_functions(**{name: f for name, f in (("estimate", estimate), ("rewind", rewind)) if f is not None})
        if isinstance(rewind, Rewind):
            rewind.check(pruner)
        if rewind is not None and lr_factor is not None:
            raise ValueError(
                f"lr_factor={lr_factor!r} and rewind={rewind!r} both set the learning rate: give one of them"
            )
        if not isinstance(dropout, bool | Mapping):
            raise TypeError(f"dropout={dropout!r}: give True, or for each dropout module the layer before it, by names")
        self._rates = None if lr_factor is None else LearningRates(pruner, lr_factor)
        self._dropouts = Dropouts(pruner, None if dropout is True else dropout) if dropout else None
        settings = {
            "lr_factor": None if self._rates is None else self._rates.factor,
            "rewind": rewind is not None,
            "dropout": dropout if isinstance(dropout, bool) else dict(dropout),
        }
        plan = run_plan(pruner, self._levels, estimate) | settings
        self._folder = None if folder is None else RunFolder(folder, plan)
        self._done: list[Round] = []

    def go(self, train: Callable[[Round], float | None]) -> list[Round]:
        """Do the rounds that are not in the folder, and return all of them."""
        self._go_on()
        first = len(self._done)
        for index, level in enumerate(self._levels[first:], first + 1):
            one = Round(index, level, self._prune(index, level))
            self._prepare()
            one.result = as_number(train(one), f"the training at {level}")
            self._save(one)
            self._done.append(one)
        return self._done

    def _prune(self, index: int, level: float) -> Report:
        try:
            return prune(self._pruner, level, self._estimate)
        except NotYet as error:
            # The training before it left nothing to go by: the next start does that round again.
            if self._folder is not None:
                self._folder.drop(_name(index - 1))
            raise NotYet(f"the pruning to {level}: {error}{_instead(self._pruner.uncertainty)}") from None

    def _prepare(self) -> None:
        """Make ready for training what was just pruned."""
        if self._rewind is not None:
            self._rewind()
            self._pruner.set_masks(self._pruner.masks)
        if self._rates is not None:
            self._rates.rescale_()
        if self._dropouts is not None:
            self._dropouts.rescale_()

    def _go_on(self) -> None:
        """Go to the end of the last round that the folder holds; if there is none, keep the start there."""
        if self._folder is None:
            return
        last = self._folder.load(_name(0))
        if last is None:
            self._save(None)
            return
        while (state := self._folder.load(_name(len(self._done) + 1))) is not None:
            last = state
            self._done.append(Round(**{**state["round"], "report": Report.from_dict(state["round"]["report"])}))
        restore_(self._pruner, last)
        if self._rates is not None:
            self._rates.start = last["rates"]
        if self._dropouts is not None:
            self._dropouts.start = last["dropouts"]
            self._dropouts.rescale_()

    def _save(self, one: Round | None) -> None:
        """Keep a round that is finished in the folder, or with None the start."""
        if self._folder is None:
            return
        state: TrainingState = {
            "round": None if one is None else asdict(one),
            "rates": [] if self._rates is None else self._rates.start,
            "dropouts": [] if self._dropouts is None else self._dropouts.start,
        }
        self._folder.save(_name(0 if one is None else one.index), take(self._pruner) | state)


def prune(pruner: Pruner, level: float, estimate: SigmaFunction | None) -> Report:
    """Prune to a level, by fresh sigmas where `estimate` gives them."""
    return pruner.prune(level, uncertainty=None if estimate is None else estimate())


def run_plan(pruner: Pruner, levels: Iterable[float], estimate: SigmaFunction | None) -> dict[str, Any]:
    """What must be the same when a run goes on from its folder, as JSON can hold it."""
    uncertainty = pruner.uncertainty
    given = estimate is not None or (uncertainty is not None and not uncertainty.learns)
    own = "default" if uncertainty is None else brief(uncertainty.with_horizon(None))
    return {
        "levels": list(levels),
        "criterion": "default" if pruner.criterion is None else brief(pruner.criterion),
        "uncertainty": "given" if given else own,
        "scope": "default" if pruner.scope is None else brief(pruner.scope),
        "pattern": brief(pruner.pattern),
        "optimizers": [type(optimizer).__name__ for optimizer in pruner.optimizers],
        "weights": {name: list(tensor.shape) for name, tensor in pruner.targets().items()},
    }


def _instead(uncertainty: Online | None) -> str:
    """What to use in place of an estimator whose `total_steps` did not fit; nothing where that is not the matter."""
    if uncertainty is None or uncertainty.horizon is None:
        return ""
    return f"; {brief(uncertainty.with_horizon(None))} takes the last steps of a training of any length"


def _name(index: int) -> str:
    return f"round-{index:02}"
