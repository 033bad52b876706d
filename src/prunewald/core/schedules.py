"""When to prune, and how far: a schedule is a function of the optimizer's step."""

from dataclasses import dataclass, replace
from itertools import pairwise

from prunewald.core.base import Schedule
from prunewald.util.arguments import share, whole
from prunewald.util.registry import schedule

_END = 10_000  # where nobody tells how long the training is
_TIMES = 20  # where it is told, a pruning comes at least so often


@schedule("cubic")
@dataclass(frozen=True)
class Cubic(Schedule):
    """From `initial` to `final` between steps `begin` and `end`, every `every` steps.  Zhu & Gupta (2017), eq. 1.

    Fast at first, when much is redundant, and slower towards the end: final + (initial - final)(1 - t)³, where t runs
    from 0 to 1. With `begin` 0 the first pruning is that of step `every`: there is no step 0.

    Without an `end` it ends with the training, where a Pruner is told its `total_steps`, and prunes at least twenty
    times on the way; where it is not, step 10,000 is the end.

    >>> [round(Cubic(0.8, begin=0, end=4, every=1)(step), 4) for step in range(1, 5)]
    [0.4625, 0.7, 0.7875, 0.8]
    """

    final: float = 0.9
    begin: int = 0
    end: int | None = None
    every: int = 100
    initial: float = 0.0

    def __post_init__(self) -> None:
        whole("begin", self.begin)
        if self.end is not None:
            whole("end", self.end, 1)
        whole("every", self.every, 1)
        if self.last <= self.begin:
            raise ValueError(f"the schedule ends at step {self.last}, and begins at {self.begin}: end must be later")
        share("initial", self.initial)
        share("final", self.final)
        _check_rising((self.initial, self.final), "initial, final")

    @property
    def last(self) -> int:
        """The step it ends at."""
        return _END if self.end is None else self.end

    @property
    def assumed(self) -> bool:
        """Whether nobody told where it ends."""
        return self.end is None

    def over(self, steps: int) -> Schedule:
        """This schedule, ending with a training of so many steps if it has no end of its own."""
        if self.end is not None:
            return super().over(steps)
        return replace(self, end=steps, every=min(self.every, max(1, (steps - self.begin) // _TIMES)))

    def __call__(self, step: int) -> float | None:
        """The sparsity that is due at a step: on the grid and at the end; None elsewhere."""
        due = (step - self.begin) % self.every == 0 or step == self.last
        if not self.begin <= step <= self.last or not due:
            return None
        left = 1 - (step - self.begin) / (self.last - self.begin)
        return self.final + (self.initial - self.final) * left**3


@schedule("stairs")
@dataclass(frozen=True)
class Stairs(Schedule):
    """One level after another, the first at step `begin` and the next each `every` steps later; one level is one shot.

    >>> [Stairs((0.5, 0.9), begin=2, every=3)(step) for step in range(1, 7)]
    [None, 0.5, None, None, 0.9, None]
    """

    levels: tuple[float, ...] = (0.5, 0.75, 0.9)
    begin: int = 1000
    every: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", check_levels(tuple(self.levels)))
        whole("begin", self.begin)
        whole("every", self.every, 1)

    @property
    def final(self) -> float:
        """The last level."""
        return self.levels[-1]

    @property
    def last(self) -> int:
        """The step of the last level."""
        return self.begin + self.every * (len(self.levels) - 1)

    def __call__(self, step: int) -> float | None:
        """The level that is due at a step; None where none is."""
        place, rest = divmod(step - self.begin, self.every)
        return self.levels[place] if not rest and 0 <= place < len(self.levels) else None


def check_levels(levels: tuple[float, ...]) -> tuple[float, ...]:
    """Sparsities that rise: each in range, none twice, none below the one before; as Python's own numbers."""
    if not levels:
        raise ValueError("levels=(): give rising sparsities, such as (0.5, 0.75, 0.9)")
    for level in levels:
        share("levels", level)
    _check_rising(levels, "levels")
    for before, after in pairwise(levels):
        if after == before:
            raise ValueError(f"levels={levels!r} has {after} twice: every level must be above the one before")
    return tuple(map(float, levels))


def _check_rising(shares: tuple[float, ...], what: str) -> None:
    for before, after in pairwise(shares):
        if after < before:
            raise ValueError(f"{what}={shares!r} falls from {before} to {after}: what is pruned stays pruned")
