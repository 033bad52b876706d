"""The candidates of a search as branches of one training: each retrained from the same start, and kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

from prunewald.core.weights import NotYet
from prunewald.pruner import Pruner
from prunewald.pruning.report import Report
from prunewald.strategies.checks import check_functions, check_pruner, checked_levels
from prunewald.strategies.rounds import Round, SigmaFunction, prune, run_plan
from prunewald.strategies.run_folder import RunFolder
from prunewald.strategies.training_state import Stateful, TrainingState, restore_, take
from prunewald.util.arguments import real
from prunewald.util.files import FilePath
from prunewald.util.notices import warn


class Restorable:
    """What a search found, with its candidates: in its folder, or in a temporary one that lives as long as this."""

    _branches: ClassVar["Branches | None"] = None  # no field, so that what was found stays data to compare and pickle

    def keeping(self, branches: "Branches") -> Self:
        """The same, and the candidates that `restore_` goes to."""
        object.__setattr__(self, "_branches", branches)
        return self

    def restore_(self, level: float | None) -> None:
        """Set all to the candidate at a level as it was after its training, or with None to before the search.

        All is the model, the optimizer, the Pruner, the copies it follows, and torch's global random numbers.
        """
        if self._branches is None:
            raise ValueError(
                f"this {type(self).__name__} is a copy, without the candidates: restore from the first one"
            )
        self._branches.settle(level)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_branches"}


class Branches:
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
        estimate: SigmaFunction | None,
        folder: FilePath | None,
        also: Sequence[Stateful] = (),
        **settings: float | None,
    ) -> None:
        check_pruner(pruner)
        check_functions(train=train, **({} if estimate is None else {"estimate": estimate}))
        self._pruner, self._train, self._measure, self._estimate = pruner, train, measure, estimate
        self._also, self._said = tuple(also), False
        self._levels = checked_levels(pruner, levels)
        self._folder = RunFolder(folder, run_plan(pruner, self._levels, estimate) | settings)
        self._start = self._folder.load("start") or self._keep("start")
        self.dense: Any = self._start["measured"]

    def __enter__(self) -> "Branches":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.settle(None)

    def __iter__(self) -> Iterator[tuple[float, Any]]:
        for index, level in enumerate(self._levels, 1):
            state = self._folder.load(_name(level))
            if state is None:
                restore_(self._pruner, self._start, self._also)
                rates = _rates(self._pruner)
                self._train(Round(index, level, self._prune(index, level)))
                self._check_rates(rates)
                state = self._keep(_name(level))
            yield level, state["measured"]

    def _prune(self, index: int, level: float) -> Report:
        try:
            return prune(self._pruner, level, self._estimate)
        except NotYet:
            if index == 1:
                self._folder.drop("start")  # the user trains on and asks again, and the search starts from there
            raise

    def _check_rates(self, before: list[float]) -> None:
        """A scheduler that is stepped in `train` goes on from candidate to candidate, unless it is set back too."""
        scheduled = any(hasattr(optimizer.step, "_wrapped_by_lr_sched") for optimizer in self._pruner.optimizers)
        if scheduled and not self._also and not self._said and _rates(self._pruner) != before:
            self._said = True
            warn(
                "an LR scheduler changed the learning rate while a candidate was trained, and is not set back before "
                "the next: give also=[scheduler], or make a new one in train()"
            )

    def _keep(self, name: str) -> TrainingState:
        state = take(self._pruner, self._also) | {"measured": self._measure()}
        self._folder.save(name, state)
        return state

    def settle(self, level: float | None) -> None:
        """Leave the model at a candidate, or as it was before."""
        state = self._start if level is None else self._folder.load(_name(real("level", level)))
        if state is None:
            held = [known for known in self._levels if self._folder.load(_name(known)) is not None]
            raise ValueError(f"there is no candidate at {level!r}: there are {held}, and None for before the search")
        restore_(self._pruner, state, self._also)


def _rates(pruner: Pruner) -> list[float]:
    return [float(group["lr"]) for optimizer in pruner.optimizers for group in optimizer.param_groups]


def _name(level: float) -> str:
    return f"level-{level!r}"
