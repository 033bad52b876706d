"""The one check of numbers and choices that a caller gave: an error repeats the value and says what to give instead."""

import math
from numbers import Integral, Real


def whole(name: str, value: object, least: int = 0, most: int | None = None) -> int:
    """A whole number in range, numpy's too, as Python's own.

    >>> whole("every", 0, least=1)
    Traceback (most recent call last):
    ValueError: every=0: give a whole number of at least 1
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if least <= number <= (number if most is None else most):
            return number
    to = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise ValueError(f"{name}={value!r}: give a whole number {to}")


def real(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    what: str = "a number",
) -> float:
    """A finite number in range, numpy's too, as Python's own; `what` says in words what it stands for.

    >>> real("decay", 1.5, above=0, below=1)
    Traceback (most recent call last):
    ValueError: decay=1.5: give a number above 0 and below 1
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and least <= number <= most and above < number < below:
            return number
    limits = (("at least", least), ("above", above), ("below", below), ("at most", most))
    given = [f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit)]
    raise ValueError(f"{name}={value!r}: give {' '.join([what, ' and '.join(given)]).strip()}")


def share(name: str, value: object) -> float:
    """A sparsity: at least 0 and below 1."""
    return real(name, value, least=0, below=1, what="a share of the weights (0.9 prunes 90 %)")


def one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    """One of a few values, by equality.

    >>> one_of("labels", "mine", ("data", "model"))
    Traceback (most recent call last):
    ValueError: labels='mine': give one of 'data', 'model'
    """
    if value not in known:
        raise ValueError(f"{name}={value!r}: give one of {', '.join(map(repr, known))}")
