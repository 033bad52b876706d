"""The options of `save`: checked once, then told apart tensor by tensor."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from prunewald.core.kmeans import MAX_SIZE
from prunewald.storage import positions
from prunewald.storage.codes import ans, streams
from prunewald.storage.codes.streams import Codec
from prunewald.storage.positions import PlaceCodecs, Positions
from prunewald.storage.values import LOSSY
from prunewald.util.arguments import one_of, whole

Values = str | None | Mapping[str, str | None]
Size = int | Mapping[str, int]
_SHOWN = 5


@dataclass(frozen=True)
class TensorOptions:
    """How one tensor is to be stored.

    `values` is one of LOSSY, or None to store the tensor bit for bit; `size` is how many values a codebook gets;
    `codecs` may code the values, and `places` the places of the survivors.
    """

    values: str | None
    size: int
    codecs: frozenset[str]
    places: PlaceCodecs


Chooser = Callable[[Sequence[str]], TensorOptions]  # from all the names that one tensor goes by


@dataclass(frozen=True)
class FileOptions:
    """How the tensors of a file are to be stored, in the words of the caller of `save`."""

    values: Values
    size: Size
    codec: Codec
    positions: Positions

    def chooser(self, names: Collection[str], targets: Collection[str]) -> Chooser:
        """Check the options against the tensors' names, and return the function that tells how to store each tensor.

        A single word for `values` goes for the `targets` alone; a dict of them for whatever it names.
        """
        sizes = _check(self.values, self.size, names)
        codecs, places = streams.allowed(self.codec), positions.allowed(self.positions, self.codec)
        if "ans" in (self.codec, self.positions):
            ans.require()

        def choose(tied: Sequence[str]) -> TensorOptions:
            if isinstance(self.values, Mapping):
                values = _first_match(self.values, tied, None)
            else:
                values = self.values if any(name in targets for name in tied) else None
            return TensorOptions(values, _first_match(sizes, tied, 32), codecs, places)

        return choose


def _check(values: Values, size: Size, names: Collection[str]) -> Mapping[str, int]:
    """Refuse what cannot be; return the sizes of codebooks by pattern of names."""
    for value in values.values() if isinstance(values, Mapping) else [values]:
        one_of("values", value, (None, *LOSSY))
    by_pattern = size if isinstance(size, Mapping) else {"*": size}
    sizes = {pattern: whole("size", one, 2, MAX_SIZE) for pattern, one in by_pattern.items()}
    for what, given in (("values", values), ("size", size)):
        for pattern in given if isinstance(given, Mapping) else ():
            if not any(fnmatchcase(name, pattern) for name in names):
                known = ", ".join(list(names)[:_SHOWN])
                raise ValueError(f"{what} has {pattern!r}, which matches no tensor: there are {known}")
    return sizes


def _first_match(given: Mapping[str, Any], names: Sequence[str], default: Any) -> Any:
    found = (value for pattern, value in given.items() if any(fnmatchcase(name, pattern) for name in names))
    return next(found, default)
