"""What the strategies are given: checked before anything changes, in numbers that any file can hold."""

from collections.abc import Iterable
from numbers import Real
from typing import Any

from torch import Tensor

from prunewald.core.schedules import check_levels
from prunewald.pruner import Pruner


def check_pruner(pruner: object) -> None:
    """A Pruner that leaves it to the strategy when to prune."""
    if not isinstance(pruner, Pruner):
        raise TypeError(f"{type(pruner).__name__} is no Pruner: give Pruner(model, optimizer)")
    if pruner.schedule is not None:
        raise ValueError(
            f"this Pruner prunes by itself, by schedule={pruner.schedule!r}, and would not keep to the levels: "
            "make it without a schedule, or set pruner.schedule = None"
        )


def check_functions(**given: object) -> None:
    """Functions by the name of their argument."""
    for name, function in given.items():
        if not callable(function):
            raise TypeError(f"{name}={function!r}: give a function{_EXAMPLES.get(name, '')}")


_EXAMPLES = {
    "train": " of the round, which trains the model",
    "evaluate": " that gives a number, higher is better",
    "losses": " that gives the loss of each calibration example",
    "estimate": " that gives sigma by parameter name",
    "rewind": ", such as a Checkpoint's method: rewind=checkpoint.weights_, or checkpoint.lr_",
}


def checked_levels(pruner: Pruner, levels: Iterable[float]) -> tuple[float, ...]:
    """Levels that rise, and that the pattern can reach."""
    if not isinstance(levels, Iterable):
        raise TypeError(f"levels={levels!r}: give rising sparsities, such as (0.5, 0.75, 0.9)")
    levels = check_levels(tuple(levels))
    most = getattr(pruner.pattern, "sparsity", None)
    if most is not None and levels[-1] > most:
        raise ValueError(f"the levels {levels} go beyond {most}, where {pruner.pattern!r} ends")
    return levels


def real(name: str, value: Any, what: str) -> float:
    """A number that was given, numpy's too, as Python's own."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r}: give a number, {what}")
    return float(value)


def number(value: Any, what: str) -> float | None:
    """A result as a plain number, which any file can hold."""
    try:
        return None if value is None else float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} gave {type(value).__name__}, and should give a number, or None") from None
