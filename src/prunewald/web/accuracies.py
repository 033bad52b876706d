"""Accuracy against sparsity: series with intervals, and paired differences beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prunewald.statistics import Difference, paired
from prunewald.util import colours
from prunewald.util.arguments import real, share
from prunewald.web.encoding import short

Given = Mapping[str, Mapping[float, float | Sequence[float]]]
_EXAMPLE = 'give accuracies={"M&U": {0.0: 0.85, 0.9: [0.83, 0.84]}}, by label and sparsity'
_TIMES = "{!r} has {} accuracies at {}, where {!r} has {}: they are compared pair by pair, so give as many of each"


@dataclass(frozen=True)
class Look:
    """How a series is drawn: colour by criterion; mark and dash by allocation."""

    color: str
    mark: str = "o"
    fill: str = "full"

    def to_dict(self) -> dict[str, str]:
        """The look on a light and on a dark ground."""
        light, dark = (colours.seen_on(self.color, ground) for ground in (colours.LIGHT, colours.DARK))
        return {"color": light, "dark": dark, "mark": self.mark, "fill": self.fill}


def series(values: Mapping[float, Sequence[float]]) -> dict[str, Any]:
    """Means with 95 % t intervals, level by level; a single value is a point without one."""
    known = {level: _single(values[level][0]) for level in values if len(values[level]) == 1}
    known |= {level: paired(own, [0.0] * len(own)) for level, own in values.items() if len(own) > 1}
    return of_differences(known)


def _single(value: float) -> Difference:
    """One value, a point without an interval."""
    return Difference(value, value, value, math.nan, 1)


def of_differences(values: Mapping[float, Difference], unit: float = 1.0) -> dict[str, Any]:
    """A series of means that are known with their intervals; with a `unit`, in parts of it."""
    levels = sorted(values)
    parts = {part: [short(unit * getattr(values[level], part)) for level in levels] for part in ("mean", "low", "high")}
    return {"levels": levels, "n": [values[level].n for level in levels], **parts}


def method(
    label: str,
    criterion: str,
    allocation: str,
    look: Look,
    own: Mapping[str, Any],
    gain: Mapping[str, Any] | None,
    over: str,
) -> dict[str, Any]:
    """One method: `own` are its series by when it was measured, `gain` its differences over another, named `over`."""
    said = {"label": label, "criterion": criterion, "allocation": allocation, "look": look.to_dict()}
    return said | {"series": dict(own), "gain": gain and dict(gain), "over": over}


def given(accuracies: Given) -> dict[str, Any]:
    """The section of accuracies that a caller gave; differences are over the first label, where pairs are complete."""
    checked = {str(label): _checked(label, own) for label, own in _mapping("accuracies", accuracies).items()}
    if not checked:
        raise ValueError(f"accuracies={accuracies!r} is empty: {_EXAMPLE}")
    first, look = next(iter(checked)), colours.of_labels(checked)
    methods = []
    for label, own in checked.items():
        gain = None if label == first else _gains(label, own, first, checked[first])
        drawn = {"measured": series(own)}
        compared = None if gain is None else {"measured": gain}
        methods.append(method(label, label, "", Look(look[label]), drawn, compared, first))
    highest = max(max(values) for own in checked.values() for values in own.values())
    return {"networks": [{"name": "", "share": highest <= 1, "lines": [], "notes": [], "methods": methods}]}


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={repr(value)[:200]}: {_EXAMPLE}")
    return value


def _checked(label: object, own: object) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for level, values in _mapping(f"accuracies[{label!r}]", own).items():
        share(f"the sparsity {level!r} of {label!r}", level)
        listed = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]
        for value in listed:
            real(f"the accuracy of {label!r} at {level:g}", value)
        if not listed:
            raise ValueError(f"{label!r} has no accuracy at {level:g}: {_EXAMPLE}")
        found[float(level)] = [float(value) for value in listed]
    if not found:
        raise ValueError(f"{label!r} has no accuracies: {_EXAMPLE}")
    return found


def _gains(
    label: str, own: Mapping[float, Sequence[float]], first: str, versus: Mapping[float, Sequence[float]]
) -> dict[str, Any] | None:
    """The paired differences over the first method, at the levels that both have."""
    both = sorted(own.keys() & versus.keys())
    for level in both:
        if len(own[level]) != len(versus[level]):
            raise ValueError(_TIMES.format(label, len(own[level]), f"{level:g}", first, len(versus[level])))
    found = {level: _single(own[level][0] - versus[level][0]) for level in both if len(own[level]) == 1}
    found |= {level: paired(own[level], versus[level]) for level in both if len(own[level]) > 1}
    return of_differences(found) if found else None
