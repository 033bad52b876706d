"""What the strategies are given, checked before anything changes; and what the user's functions return."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from prunewald.core.schedules import check_levels
from prunewald.pruner import Pruner

_EXAMPLES = {
    "train": " of the round, which trains the model",
    "evaluate": " that gives a number, higher is better",
    "losses": " that gives the loss of each calibration example",
    "estimate": " that gives sigma by parameter name",
    "rewind": ", such as a Checkpoint's: rewind=checkpoint.weights_, or checkpoint.lr_",
}


def check_pruner(pruner: object) -> None:
    """Refuse what is no Pruner, and one that would prune by itself between the levels of a strategy."""
    if not isinstance(pruner, Pruner):
        raise TypeError(f"{type(pruner).__name__} is no Pruner: give Pruner(model, optimizer)")
    if pruner.schedule is not None:
        raise ValueError(
            f"this Pruner prunes by itself, by schedule={pruner.schedule!r}, and would not keep to the levels: "
            "make one without a schedule (detach() this one first)"
        )


def check_functions(**given: object) -> None:
    """Refuse what cannot be called; the keywords are the names of the arguments."""
    for name, function in given.items():
        if not callable(function):
            raise TypeError(f"{name}={function!r}: give a function{_EXAMPLES.get(name, '')}")


def checked_levels(pruner: Pruner, levels: Iterable[float]) -> tuple[float, ...]:
    """Rising levels that the Pruner's pattern can reach, as Python's own numbers."""
    if not isinstance(levels, Iterable):
        raise TypeError(f"levels={levels!r}: give rising sparsities, such as (0.5, 0.75, 0.9)")
    levels = check_levels(tuple(levels))
    most = pruner.pattern.sparsity
    if most is not None and levels[-1] > most:
        raise ValueError(f"the levels {levels} go beyond {most}, where {pruner.pattern!r} ends")
    return levels


def as_number(result: Any, what: str) -> float | None:
    """What a function of the user's returned, as a plain number, which any file can hold; it may well be NaN.

    This is a conversion and no check of an argument: tensors and arrays with one element are numbers here too.
    """
    try:
        return None if result is None else float(result.detach() if isinstance(result, Tensor) else result)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} gave {type(result).__name__}, and should give a number, or None") from None
