"""Iterative pruning: prune a little, train, and again, through rising levels."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor

from prunewald.core.weights import NotYet
from prunewald.pruner import Pruner
from prunewald.pruning.checks import copied
from prunewald.pruning.report import Report
from prunewald.strategies.checkpoint import check_rewind, set_
from prunewald.strategies.checks import check_functions, check_pruner, checked_levels, number, real
from prunewald.strategies.dropout import Dropouts
from prunewald.strategies.run_folder import RunFolder
from prunewald.strategies.training_state import TrainingState, as_report, restore_, take
from prunewald.util.files import FilePath
from prunewald.util.registry import brief

SigmaFunction: TypeAlias = Callable[[], Mapping[str, Tensor]]


@dataclass
class Round:
    """One level of an iterative pruning: what was pruned, and what the training after it returned."""

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
    lr: float | None = None,
    dropout: bool | Mapping[str, str] = False,
    folder: FilePath | None = None,
) -> list[Round]:
    """Prune to each level in turn, and train after each.  Han et al. (2015).

    `train` is the user's own: it is called with the round after its pruning, and may return a number to keep, such as
    an accuracy. An online estimator collects while it trains, so sigma is of the survivors; an offline one is called
    anew before every pruning by `estimate`, which returns its sigmas.

    - `rewind`: called after each pruning, as `Checkpoint(model, optimizer).weights_` or `.lr_`; the zeros stay.
    - `lr`: the learning rate each retraining begins with, as a share of the optimizer's (where a scheduler has changed
      that, of the one it began with); Han takes a tenth. With None it stays what it is, which after a decay inside
      `train` is little.
    - `dropout`: lower the rate of every dropout module by sqrt(kept / all) of the layer before it, as Han does: of all
      its weights, also those that were pruned before. True goes by the order in which the model holds its modules, and
      where that layer is no target the rate stays; a dict says for each dropout module which layer it is.
    - `folder`: every finished round is kept there, and the next start goes on after the last one, whatever the model
      is by then; to rewind to a checkpoint, take that again. The folder also keeps the copies that the Pruner follows
      and torch's global random numbers, but no others, such as those of a DataLoader with a generator of its own.
    """
    check_functions(train=train)
    run = _Run(pruner, levels, estimate, rewind, lr, dropout, folder)
    for one in run.rounds():
        one.result = train(one)
    return run.done


def rounds(
    pruner: Pruner,
    levels: Iterable[float],
    *,
    estimate: SigmaFunction | None = None,
    rewind: Callable[[], None] | None = None,
    lr: float | None = None,
    dropout: bool | Mapping[str, str] = False,
    folder: FilePath | None = None,
) -> Iterator[Round]:
    """The same for those who keep their loop: `for one in rounds(pruner, levels): train(...)`; set `one.result`.

    A round is finished, and kept in the folder, when the loop asks for the next one or comes to its end: the one in
    which you `break` is not, and the next start does it again.
    """
    return _Run(pruner, levels, estimate, rewind, lr, dropout, folder).rounds()


class _Run:
    """An iterative pruning, checked and ready to go on from where its folder ends."""

    def __init__(
        self,
        pruner: Pruner,
        levels: Iterable[float],
        estimate: SigmaFunction | None,
        rewind: Callable[[], None] | None,
        lr: float | None,
        dropout: bool | Mapping[str, str],
        folder: FilePath | None,
    ) -> None:
        check_pruner(pruner)
        self._pruner, self._estimate, self._rewind = pruner, estimate, rewind
        self._levels = checked_levels(pruner, levels)
        check_functions(**{name: f for name, f in (("estimate", estimate), ("rewind", rewind)) if f is not None})
        check_rewind(rewind, pruner)
        if rewind is not None and lr is not None:
            raise ValueError(f"lr={lr!r} and rewind={rewind!r} both set the learning rate: give one of them")
        groups = [group for optimizer in pruner.optimizers for group in optimizer.param_groups]
        self._rates = [copied(group.get("initial_lr", group["lr"])) for group in groups]
        self._lr = None if lr is None else _share(lr, self._rates)
        if not isinstance(dropout, bool | Mapping):
            raise TypeError(f"dropout={dropout!r}: give True, or for each dropout module the layer before it, by names")
        self._dropouts = Dropouts(pruner, None if dropout is True else dropout) if dropout else None
        settings = {
            "lr": self._lr,
            "rewind": rewind is not None,
            "dropout": dropout if isinstance(dropout, bool) else dict(dropout),
        }
        self._folder = (
            RunFolder(folder, run_plan(pruner, self._levels, estimate) | settings) if folder is not None else None
        )
        self.done: list[Round] = []

    def rounds(self) -> Iterator[Round]:
        self._go_on()
        first = len(self.done)
        for index, level in enumerate(self._levels[first:], first + 1):
            one = Round(index, level, self._prune(index, level))
            self._prepare()
            yield one
            one.result = number(one.result, f"the training at {level}")
            self._save(one)
            self.done.append(one)

    def _prune(self, index: int, level: float) -> Report:
        try:
            return prune(self._pruner, level, self._estimate)
        except NotYet as error:
            # The training before it left nothing to go by: it is done again, by whatever makes up for that.
            if self._folder is not None:
                self._folder.drop(_name(index - 1))
            raise NotYet(f"the pruning to {level}: {error}{_instead(self._pruner.uncertainty)}") from None

    def _prepare(self) -> None:
        """Make ready for training what was just pruned."""
        if self._rewind is not None:
            self._rewind()
            self._pruner.set_masks(self._pruner.masks)
        if self._lr is not None:
            groups = [group for optimizer in self._pruner.optimizers for group in optimizer.param_groups]
            for group, rate in zip(groups, self._rates, strict=True):
                for key in group.keys() & {"lr", "initial_lr"}:  # the next scheduler begins with the one of the last
                    set_(group, key, rate * self._lr)
        if self._dropouts is not None:
            self._dropouts.rescale_()

    def _go_on(self) -> None:
        """Go to the end of the last round that the folder holds, or to the start it holds, or keep that."""
        if self._folder is None:
            return
        last = self._folder.load(_name(0))
        if last is None:
            self._save(None)
            return
        while (state := self._folder.load(_name(len(self.done) + 1))) is not None:
            last = state
            self.done.append(Round(**{**state["round"], "report": as_report(state["round"]["report"])}))
        restore_(self._pruner, last)
        self._rates = last["rates"]
        if self._dropouts is not None:
            self._dropouts.start = last["dropouts"]
            self._dropouts.rescale_()

    def _save(self, one: Round | None) -> None:
        if self._folder is not None:
            state: TrainingState = {"round": None if one is None else asdict(one), "rates": self._rates}
            state["dropouts"] = [] if self._dropouts is None else self._dropouts.start
            self._folder.save(_name(0 if one is None else one.index), take(self._pruner) | state)


def prune(pruner: Pruner, level: float, estimate: SigmaFunction | None) -> Report:
    """Prune to a level, by fresh sigmas where these come from data."""
    own = pruner.uncertainty
    if estimate is not None:
        pruner.uncertainty = estimate()
    try:
        return pruner.prune(level)
    finally:
        pruner.uncertainty = own


def run_plan(pruner: Pruner, levels: Iterable[float], estimate: SigmaFunction | None) -> dict[str, Any]:
    """What must be the same when a run goes on."""
    uncertainty = pruner.uncertainty
    given = estimate is not None or isinstance(uncertainty, Mapping)
    return {
        "levels": list(levels),
        "criterion": "default" if pruner.criterion is None else brief(pruner.criterion),
        "uncertainty": "given" if given else "default" if uncertainty is None else brief(_rolling(uncertainty)),
        "scope": brief(pruner.scope),
        "pattern": brief(pruner.pattern),
        "optimizers": [type(optimizer).__name__ for optimizer in pruner.optimizers],
        "weights": {name: list(tensor.shape) for name, tensor in pruner.targets().items()},
    }


def _share(lr: Any, rates: list[Any]) -> float:
    """The share of the learning rates to retrain with."""
    if not real("lr", lr, "the share of the learning rate") > 0:
        raise ValueError(f"lr={lr!r}: the share of the learning rate must be above 0")
    if not rates:
        raise ValueError(f"lr={lr!r}: this Pruner has no optimizer, whose learning rate it could be")
    if not any(rates):
        raise ValueError(f"lr={lr!r} is a share of the optimizer's learning rate, and that is 0: set it first")
    return float(lr)


def _rolling(uncertainty: Any) -> Any:
    """An estimator without its `total_steps`: with others, or none, what is in a folder stays the same run."""
    fixed = is_dataclass(uncertainty) and getattr(uncertainty, "total_steps", None) is not None
    return replace(uncertainty, total_steps=None) if fixed else uncertainty


def _instead(uncertainty: Any) -> str:
    rolling = _rolling(uncertainty)
    return "" if rolling is uncertainty else f"; {brief(rolling)} takes the last steps of a training of any length"


def _name(index: int) -> str:
    return f"round-{index:02}"
