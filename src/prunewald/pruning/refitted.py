"""What a refit did to a pruned model: data, and a table for a terminal or a notebook."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from prunewald.util.arguments import whole
from prunewald.util.tables import html_table, text_table

_HEAD = ("layer", "positions", "ridge", "error before", "error after", "")
_LEFT = (0, 5)


@dataclass(frozen=True)
class LayerRefit:
    """One layer: a weight with its bias, a part of one, or a BatchNorm.

    `positions` are those that were fitted to, an example or a place in one each. `ridges` are those that the examples
    held back chose (one, but for layers of groups, which choose each for themselves); none where the layer was left as
    it was, and `reason` says why. `before` and `after` are the squared error of its outputs on examples held back, as a
    share of the dense outputs' own squares; None where it was not measured.
    """

    name: str
    positions: int
    ridges: tuple[float, ...]
    before: float | None
    after: float | None
    reason: str = ""

    @property
    def changed(self) -> bool:
        """Whether the layer has other values than before."""
        return self.after is not None and not self.reason


@dataclass(frozen=True)
class Refit:
    """What `refit` did, layer by layer in the order in which they are computed. Prints as a table.

    `examples` were fitted to, `held` were held back; these have chosen, so a certificate needs others. `judged` says by
    what the whole was compared on the examples held back, `before` and `after` are these figures, and `step` is how far
    the weights went from where they were (0) to where the refit of the layers took them (1).
    """

    layers: Sequence[LayerRefit]
    examples: int
    held: int
    judged: str
    before: float
    after: float
    step: float
    seconds: float
    notes: Sequence[str] = ()

    @classmethod
    def from_dict(cls, saved: Any) -> "Refit":
        """A refit, from the plain data that `to_dict` made of it; a ValueError if the data make no sense."""
        match saved:
            case {"layers": list(layers), "notes": list(notes), "judged": str(judged), **numbers}:
                if all(isinstance(note, str) for note in notes):
                    examples, held = (_count(numbers.get(name)) for name in ("examples", "held"))
                    figures = (_figure(numbers.get(name)) for name in ("before", "after", "step", "seconds"))
                    before, after, step, seconds = (math.nan if one is None else one for one in figures)
                    found = [_layer(layer) for layer in layers]
                    return cls(found, examples, held, judged, before, after, step, seconds, tuple(notes))
        raise ValueError(f"the report of a refit makes no sense: {str(saved)[:200]}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        layers = [{**asdict(layer), "ridges": list(layer.ridges)} for layer in self.layers]
        numbers = {name: _figure(vars(self)[name]) for name in ("before", "after", "step", "seconds")}
        return {**asdict(self), **numbers, "layers": layers, "notes": list(self.notes)}

    def words(self) -> list[str]:
        """What is said above the table."""
        changed = sum(layer.changed for layer in self.layers)
        judged = f"{self.judged} on them {self.before:.4g} -> {self.after:.4g}"
        return [
            *self.notes,
            f"refitted {changed} of {len(self.layers)} layers on {self.examples:,} examples, {self.held:,} held back; "
            f"{judged}; {self.seconds:.1f} s",
            *([] if self.step == 1 else [_STEPS.format(self.step) if self.step else _NOTHING]),
            _CHOSEN,
        ]

    def __str__(self) -> str:
        return "\n".join([*self.words(), text_table(*self._cells(), left=_LEFT)])

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in self.words()) + html_table(*self._cells(), left=_LEFT)

    def _cells(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        return _HEAD, [_row(layer) for layer in self.layers]


_CHOSEN = (
    "these examples have chosen: what they say of the model is too good, and a test or a certificate needs other ones"
)
_STEPS = "the whole was no better with all of it: the weights went {:g} of the way"
_NOTHING = "the whole was no better on the examples held back: all weights are as they were"


def _layer(saved: Any) -> LayerRefit:
    match saved:
        case {"name": str(name), "positions": positions, "ridges": list(ridges), "reason": str(reason), **rest}:
            found = tuple(0.0 if (ridge := _figure(one)) is None else ridge for one in ridges)
            before, after = _figure(rest.get("before")), _figure(rest.get("after"))
            return LayerRefit(name, _count(positions), found, before, after, reason)
    raise ValueError(f"the report of a refit has a layer that makes no sense: {str(saved)[:200]}")


def _count(value: Any) -> int:
    return whole("a count in the report of a refit", value)


def _figure(value: Any) -> float | None:
    """A number; None where there is none that JSON could hold."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"the report of a refit has {str(value)[:50]!r} for a number")
    return None if value is None or not math.isfinite(value) else float(value)


def _row(layer: LayerRefit) -> tuple[str, ...]:
    ridges = sorted({layer.ridges[0], layer.ridges[-1]}) if layer.ridges else []
    return (
        layer.name,
        f"{layer.positions:,}",
        " to ".join(f"{ridge:g}" for ridge in ridges) or "-",
        _share(layer.before),
        _share(layer.after),
        layer.reason,
    )


def _share(error: float | None) -> str:
    return "-" if error is None or not math.isfinite(error) else f"{error:.4g}"
