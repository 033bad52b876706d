"""What runs as int8, and why: data, and a table for a terminal or a notebook."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from prunewald.util.tables import html_table, text_table

_HEAD = ("layer", "weight", "zeros", "codes", "runs in", "float", "int8", "faster", "differs", "why")
_LEFT = (0, 3, 4, 9)


@dataclass(frozen=True)
class Int8Layer:
    """A layer: how it runs, and what was measured, in seconds a call.

    `codes` are "trained", "found" or "rounded" (at an `error` of the norm of the weight); `way` is empty where it stays
    float, and `reason` says why. `difference` is that of its outputs, of their largest. None: nothing was measured.
    """

    name: str
    shape: tuple[int, ...]
    zeros: float
    codes: str = ""
    error: float = 0.0
    way: str = ""
    dense: float | None = None
    int8: float | None = None
    difference: float | None = None
    reason: str = ""

    @property
    def faster(self) -> float | None:
        """How many times as fast as float it was measured to be."""
        return None if self.dense is None or not self.int8 else self.dense / self.int8


@dataclass(frozen=True)
class Int8Report:
    """What was done, layer by layer, and of the whole model. Prints as a table.

    `dense` and `int8` are seconds of the whole on the example, None where it was not timed; `difference` is that of its
    outputs from the model's, of their largest; `replaced` is whether anything runs as int8, and `reason` why not.
    """

    layers: Sequence[Int8Layer]
    threads: int
    example: str
    replaced: bool
    difference: float
    dense: float | None = None
    int8: float | None = None
    reason: str = ""

    @property
    def faster(self) -> float | None:
        """How many times as fast as float the whole runs; 1 where it stayed float."""
        if not self.replaced:
            return 1.0
        return None if self.dense is None or not self.int8 else self.dense / self.int8

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        layers = [{**asdict(one), "shape": list(one.shape), "faster": one.faster} for one in self.layers]
        return {**asdict(self), "layers": layers, "faster": self.faster}

    def words(self) -> list[str]:
        """What is said above the table."""
        measured = f"measured for {self.example}, {self.threads} thread{'s' * (self.threads > 1)}"
        times = "" if self.dense is None else f"float {_time(self.dense)}, int8 {_time(self.int8)}"
        if self.replaced:
            said = f"{times}, {self.faster:.2f} times as fast; " if times else ""
            whole = f"the whole model: {said}outputs differ by {self.difference:.2g} of the largest"
        else:
            whole = f"all of the model runs in float: {self.reason}" + (f" ({times})" if times else "")
        return [f"{whole}; {measured}", *self._rounded()]

    def _rounded(self) -> list[str]:
        errors = [one.error for one in self.layers if one.codes == "rounded"]
        if not errors:
            return []
        return [
            f"{len(errors)} of the weights rounded to int8 here, without training, each row by itself: at most "
            f"{max(errors):.2%} of a weight's norm is lost; LinearValues trains with the rounded weights instead"
        ]

    def __str__(self) -> str:
        return "\n".join([*self.words(), text_table(_HEAD, [_row(one) for one in self.layers], left=_LEFT)])

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(line)}</p>" for line in self.words())
        return words + html_table(_HEAD, [_row(one) for one in self.layers], left=_LEFT)


def _row(one: Int8Layer) -> tuple[str, ...]:
    shape = " x ".join(map(str, one.shape))
    faster = "-" if one.faster is None else f"{one.faster:.2f}"
    differs = "-" if one.difference is None else f"{one.difference:.2g}"
    times = (_time(one.dense), _time(one.int8), faster, differs)
    return one.name, shape, f"{one.zeros:.1%}", one.codes or "-", one.way or "float", *times, one.reason


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"
