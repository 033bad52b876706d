"""What a caller gives by layer, such as a sparsity, by the names of the slices that are meant."""

from collections.abc import Mapping, Sequence

from torch import nn

from prunewald.model.slices import Slice, layer_of
from prunewald.model.targets import match


def by_slice(
    model: nn.Module, slices: Sequence[Slice], given: Mapping[str, float], what: str = "sparsity"
) -> dict[str, float]:
    """A dict by the names of slices, from one by the names of slices, parameters or modules, or by globs.

    A key without wildcards goes before a glob: {"*": 0.9, "fc2": 0.5} is 0.9 for all but one. `what` its values are is
    said in errors.
    """
    names = {part.name for part in slices}
    result: dict[str, float] = {}
    globbed: set[str] = set()
    for key, value in sorted(given.items(), key=lambda item: not _is_glob(item[0])):
        meant = match(model, key)
        whole = {part.param for part in meant if part.index is None}
        spelled = {key, *(part.name for part in meant)}
        hit = {part.name for part in slices if part.name in spelled or part.param in whole}
        if not hit:
            raise ValueError(f"{what} for {key!r}: no target of that name; the targets are {sorted(names)}")
        if twice := hit & (result.keys() if _is_glob(key) else result.keys() - globbed):
            raise ValueError(f"{what} for {key!r} names {sorted(twice)} a second time")
        globbed = globbed | hit if _is_glob(key) else globbed - hit
        result |= dict.fromkeys(hit, value)
    return result


def by_whole_layer(slices: Sequence[Slice], named: Mapping[str, float]) -> dict[str, float]:
    """The same dict, and what nobody named in a layer of which one share was asked: a bias goes with its weight."""
    shares: dict[str, set[float]] = {}
    for part in slices:
        shares.setdefault(layer_of(part), set()).update([named[part.name]] if part.name in named else [])
    given = {part.name: shares[layer_of(part)] for part in slices if part.name not in named}
    return {**named, **{name: share for name, found in given.items() if len(found) == 1 for share in found}}


def _is_glob(key: str) -> bool:
    return any(sign in key for sign in "*?")
