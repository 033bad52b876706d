"""What a pruning did: data, and a table for a terminal or a notebook."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from prunewald.pruning.refitted import Refit
from prunewald.util.notices import warn
from prunewald.util.tables import html_table, text_table
from prunewald.util.text import printable, some

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEAD = ("layer", "shape", "weights", "kept", "sparsity", "threshold", "dead", "rank corr. ABS", "overlap ABS")
NAMED = 6  # so many of what was emptied are named in a warning or a note
LOSS = "{name} {empty:,} of {rows:,}"  # a RowLoss in words
_LEFT = (0, 1)  # names and shapes; numbers stand to the right


@dataclass(frozen=True)
class TensorReport:
    """One tensor, or one slice of it.

    `threshold` is the lowest score kept (None: nothing, or everything, was pruned, or weights went in groups). `dead`
    is the share, of the weights alive before, that no gradient reached. `correlation` is Spearman's between score and
    |w|, on about 65,536 evenly spread weights (NaN: nothing was scored); `overlap` the share of the kept weights that
    magnitude would keep too, at the same count (where each row has its own, of about 262,144 weights in evenly spread
    rows).
    """

    name: str
    shape: tuple[int, ...]
    weights: int
    kept: int
    threshold: float | None
    dead: float | None
    correlation: float
    overlap: float

    @property
    def sparsity(self) -> float:
        """The share of weights that is zero; 0 where there are none."""
        return 1 - self.kept / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class UnitReport:
    """A coupled group, by the first layer that makes its units: filters, neurons or heads that go as a whole."""

    name: str
    units: int
    kept: int


@dataclass(frozen=True)
class RowLoss:
    """Output rows of a tensor that lost their last weight in a pruning: each is an output that no input changes."""

    name: str
    lost: int  # in this pruning
    empty: int  # by now
    rows: int
    grave: bool  # whether it is worth a warning, and not what is to be expected


@dataclass(frozen=True)
class Report:
    """What `Pruner.prune` did, or with `dry_run` would do. Prints as a table."""

    rows: Sequence[TensorReport]
    criterion: str
    uncertainty: str
    scope: str
    notes: Sequence[str] = ()
    dry_run: bool = False
    pattern: str = "Element()"
    unfinished: str = ""  # where the schedule stood, if it pruned and had not come to its end
    lost_rows: Sequence[RowLoss] = field(default=(), compare=False)  # in tensors that keep some; a file does not tell
    groups: Sequence[UnitReport] = field(default=(), compare=False)  # what became of coupled ones; no file tells
    refit: Refit | None = None  # what a refit did to the weights that are left, if there was one

    @property
    def weights(self) -> int:
        """How many weights the targets hold."""
        return sum(row.weights for row in self.rows)

    @property
    def kept(self) -> int:
        """How many of them stay."""
        return sum(row.kept for row in self.rows)

    @property
    def sparsity(self) -> float:
        """The share of the targets' weights that is zero; 0 where there are none."""
        return 1 - self.kept / self.weights if self.weights else 0.0

    @property
    def emptied(self) -> list[str]:
        """Tensors that lost all their weights."""
        return [row.name for row in self.rows if not row.kept]

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Report":
        """A report, from the plain data that `dataclasses.asdict` made of it."""
        rows = [TensorReport(**row) for row in saved["rows"]]
        lost = [RowLoss(**loss) for loss in saved.get("lost_rows", ())]
        groups = [UnitReport(**group) for group in saved.get("groups", ())]
        refit = None if saved.get("refit") is None else Refit.from_dict(saved["refit"])
        return cls(**{**saved, "rows": rows, "lost_rows": lost, "groups": groups, "refit": refit})

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        total = {"weights": self.weights, "kept": self.kept, "sparsity": self.sparsity}
        layers = [{k: _plain(v) for k, v in asdict(row).items()} | {"sparsity": row.sparsity} for row in self.rows]
        settings = {"criterion": self.criterion, "uncertainty": self.uncertainty, "scope": self.scope}
        settings |= {"pattern": self.pattern}
        return settings | {
            "notes": list(self.notes),
            "dry_run": self.dry_run,
            "unfinished": self.unfinished,
            "lost_rows": [asdict(loss) for loss in self.lost_rows],
            "total": total,
            "layers": layers,
            **({"groups": [asdict(group) for group in self.groups]} if self.groups else {}),
            **({} if self.refit is None else {"refit": self.refit.to_dict()}),
        }

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row a tensor."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install pandas; to_dict() works without") from error
        return pandas.DataFrame(self.to_dict()["layers"]).set_index("name")

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw the share of its weights that each layer keeps; returns the axes. Needs matplotlib."""
        from prunewald.pruning.drawing import kept_bars

        return kept_bars(self, axes)

    def __str__(self) -> str:
        words = map(printable, self._words())  # a file's report may say anything
        after = [] if self.refit is None else ["", str(self.refit)]
        units = ["", text_table(*self._unit_cells())] if self.groups else []
        return "\n".join([*words, text_table(*self._cells(), left=_LEFT, total=self._total()), *units, *after])

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(line)}</p>" for line in self._words())
        after = "" if self.refit is None else self.refit._repr_html_()
        units = html_table(*self._unit_cells()) if self.groups else ""
        return words + html_table(*self._cells(), left=_LEFT, total=self._total()) + units + after

    def _words(self) -> list[str]:
        """What is said above the table."""
        return [*self.notes, *([self.unfinished] if self.unfinished else []), self._title()]

    def _cells(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        return _HEAD, [_row_cells(row) for row in self.rows]

    def _unit_cells(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        rows = [(one.name, f"{one.units:,}", f"{one.kept:,}", f"{1 - one.kept / one.units:.2%}") for one in self.groups]
        return ("coupled group", "units", "kept", "gone"), [*rows]

    def _total(self) -> tuple[str, ...]:
        return ("total", "", f"{self.weights:,}", f"{self.kept:,}", f"{self.sparsity:.2%}", "", "", "", "")

    def _title(self) -> str:
        verb = "would prune" if self.dry_run else "pruned"
        sigma = f", sigma from {self.uncertainty}" if self.uncertainty else ""
        pattern = "" if self.pattern == "Element()" else f", pattern {self.pattern}"
        return f"{verb} by {self.criterion}{sigma}, scope {self.scope}{pattern}"


def warn_emptied(report: Report, said: Collection[str] = ()) -> list[str]:
    """Warn of what lost its last weight, and of layers that lost outputs; of what is in `said` there is no warning.

    What is said by now is returned: names of tensors, and "rows of" such a name.
    """
    emptied = [name for name in report.emptied if name not in said]
    if emptied:
        warn(
            f"{some(emptied, NAMED)} lost all weights, and pass nothing on: prune less, with scope='layer', "
            "or ignore=... them"
        )
    losses = [loss for loss in report.lost_rows if loss.grave and f"rows of {loss.name}" not in said]
    if losses:
        shown = some([LOSS.format_map(vars(loss)) for loss in losses], NAMED)
        warn(
            f"{shown} output rows have no weight left, and these outputs are the same for every input: prune less, "
            "with scope='row', or ignore=... them"
        )
    return [*said, *emptied, *(f"rows of {loss.name}" for loss in losses)]


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: NaN and infinity become None, tuples lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value


def _row_cells(row: TensorReport) -> tuple[str, ...]:
    return (
        row.name,
        "x".join(map(str, row.shape)),
        f"{row.weights:,}",
        f"{row.kept:,}",
        f"{row.sparsity:.2%}",
        "-" if row.threshold is None else f"{row.threshold:.4g}",
        "-" if row.dead is None else f"{row.dead:.1%}",
        "-" if math.isnan(row.correlation) else f"{row.correlation:.3f}",
        f"{row.overlap:.1%}",
    )
