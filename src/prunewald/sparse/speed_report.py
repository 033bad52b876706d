"""What run_sparse chose, and why: data, and a table for a terminal or a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from prunewald.util.tables import html_table, text_table

_HEAD = ("layer", "weight", "zeros", "samples", "runs by", "dense", "sparse", "faster", "why")
_LEFT = (0, 4, 8)


@dataclass(frozen=True)
class LayerSpeed:
    """A layer, or a chain of them in one call: how it runs, and what was measured, in seconds a call.

    `way` is empty where it stays dense; `reason` says why. `dense` and `sparse` are None where nothing was measured;
    `tried` has all ways that were, by name. `samples` are the rows that the example gave the layer.
    """

    name: str
    shape: tuple[int, ...]
    zeros: float
    samples: int
    way: str
    dense: float | None
    sparse: float | None
    reason: str
    tried: Mapping[str, float] = field(default_factory=dict)

    @property
    def faster(self) -> float | None:
        """How many times as fast as dense it was measured to be; None where nothing was measured."""
        return None if self.dense is None or not self.sparse else self.dense / self.sparse


@dataclass(frozen=True)
class SpeedReport:
    """What `run_sparse` did. Prints as a table; the times are of this machine, these threads and the example's batch.

    `layers` has every weight, and then the chains. `dense` and `sparse` are seconds of the whole model on the example;
    `replaced` is whether the model runs sparse at all: it does not where that was no faster.
    """

    layers: Sequence[LayerSpeed]
    threads: int
    example: str
    dense: float | None
    sparse: float | None
    replaced: bool
    notes: Sequence[str] = ()

    @property
    def faster(self) -> float:
        """How many times as fast as dense the model runs: 1 where it stayed dense."""
        return self.dense / self.sparse if self.replaced and self.dense and self.sparse else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        layers = [{**asdict(one), "shape": list(one.shape), "faster": one.faster} for one in self.layers]
        return {**asdict(self), "layers": layers, "notes": list(self.notes), "faster": self.faster}

    def words(self) -> list[str]:
        """What is said above the table."""
        measured = f"measured for {self.example}, {self.threads} thread{'s' * (self.threads > 1)}"
        times = f"dense {_time(self.dense)}, sparse {_time(self.sparse)}"
        if self.replaced:
            whole = f"the whole model: {times}, {self.faster:.2f} times as fast"
        elif self.dense is not None:
            whole = f"the whole model was no faster ({times}): all of it runs dense"
        else:
            whole = "all of it runs dense"
        return [f"{whole}; {measured}", _OTHERS, *self.notes]

    def __str__(self) -> str:
        return "\n".join([*self.words(), text_table(_HEAD, self._cells(), left=_LEFT)])

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in self.words()) + html_table(_HEAD, self._cells(), left=_LEFT)

    def _cells(self) -> list[Sequence[str]]:
        return [_row(one) for one in self.layers]


_OTHERS = "other batches, and other numbers of threads, give the same results, and were not measured"


def _row(one: LayerSpeed) -> tuple[str, ...]:
    shape = " x ".join(map(str, one.shape))
    times = [_time(one.dense), _time(one.sparse), "-" if one.faster is None else f"{one.faster:.2f}"]
    samples = f"{one.samples:,}" if one.samples else "-"
    return one.name, shape or "-", f"{one.zeros:.1%}", samples, one.way or "dense", *times, one.reason


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"
