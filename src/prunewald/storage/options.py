"""What a user asks of a file, tensor by tensor."""

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from prunewald.core.kmeans import MAX_SIZE
from prunewald.storage import positions
from prunewald.storage.codes import ans, streams
from prunewald.storage.codes.streams import Codec
from prunewald.storage.positions import Positions
from prunewald.storage.sections import TensorOptions
from prunewald.storage.values import LOSSY

Values = str | None | Mapping[str, str | None]
Size = int | Mapping[str, int]
Chooser = Callable[[Sequence[str]], TensorOptions]


def chooser(
    values: Values, size: Size, codec: Codec, places: Positions, names: Collection[str], targets: Collection[str]
) -> Chooser:
    """Check what is asked; give the function that tells, by a tensor's names, how to store it.

    One way for all is for the targets; where it is by name, for whatever is named.
    """
    _check(values, size, names)
    codecs, ways = streams.allowed(codec), positions.ways(places, codec)
    if "ans" in (codec, places):
        ans.require()

    def how(tied: Sequence[str]) -> TensorOptions:
        if isinstance(values, Mapping):
            wanted = _first(values, tied, None)
        else:
            wanted = values if any(name in targets for name in tied) else None
        return TensorOptions(wanted, _first(size, tied, 32) if isinstance(size, Mapping) else size, codecs, ways)

    return how


def _check(values: Values, size: Size, names: Collection[str]) -> None:
    for value in values.values() if isinstance(values, Mapping) else [values]:
        if value is not None and value not in LOSSY:
            raise ValueError(f"values={value!r}: give None (as they are) or one of {', '.join(map(repr, LOSSY))}")
    for one in size.values() if isinstance(size, Mapping) else [size]:
        if type(one) is not int or not 2 <= one <= MAX_SIZE:
            raise ValueError(f"size={one!r}: a codebook has 2 to {MAX_SIZE} values")
    for what, given in (("values", values), ("size", size)):
        for pattern in given if isinstance(given, Mapping) else ():
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"{what} has {pattern!r}, which matches no tensor; there are {', '.join(list(names)[:5])}"
                )


def _first(given: Mapping[str, Any], names: Sequence[str], default: Any) -> Any:
    found = (value for pattern, value in given.items() if any(fnmatchcase(name, pattern) for name in names))
    return next(found, default)
