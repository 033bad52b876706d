"""What a paired comparison says over all its seeds, and the table of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from prunewald.lab.trial import ABS, Cell, Trial
from prunewald.statistics.differences import Difference, holm, paired


@dataclass(frozen=True)
class Row:
    """One method at one level: mean accuracies in percent, differences in points."""

    level: float
    method: str
    pruned: float
    retrained: float
    drop: Difference  # retrained - dense
    pruned_gain: Difference | None  # over ABS; None for ABS itself
    retrained_gain: Difference | None
    p_holm: float | None = None  # of retrained_gain, over all rows


def rows(trials: Sequence[Trial]) -> list[Row]:
    """Summarise trials, level by level, the methods in the order they were run."""
    cells = trials[0].cells
    gains = {cell_key(cell): _gain(trials, cell, "retrained") for cell in cells if cell.method != ABS}
    adjusted = dict(zip(gains, holm([gain.p for gain in gains.values()]), strict=True))
    return [_row(trials, cell, adjusted.get(cell_key(cell))) for cell in cells]


def table(trials: Sequence[Trial]) -> str:
    """Write the comparison as text: dense accuracy first, then one line a method and level."""
    dense, control = [100 * trial.dense for trial in trials], [100 * trial.control for trial in trials]
    lines = [
        f"Test accuracy in %, mean of {len(trials)} networks; paired differences in points, 95 % intervals.",
        f"Dense {_mean(dense):.2f}; after as many extra epochs {_mean(control):.2f}: {paired(control, dense)}",
        "",
        f"{'pruned':>6}  {'criterion':<22}{'at once':>7}   {'over ABS':<26}{'retrained':>9}   over ABS",
    ]
    for row in rows(trials):
        if row.method == ABS:
            lines.append("")
        lines.append(_line(row))
    return "\n".join([*lines, "", "* a difference after retraining, at 5 % with Holm's correction over the table"])


def cell_key(cell: Cell) -> tuple[float, str]:
    """Where a cell stands in the table."""
    return cell.level, cell.method


def _line(row: Row) -> str:
    level = f"{100 * row.level:g} %" if row.method == ABS else ""
    star = " *" if row.p_holm is not None and row.p_holm < 0.05 else ""
    pruned_gain, retrained_gain = row.pruned_gain or "", row.retrained_gain or ""
    return (
        f"{level:>6}  {row.method:<22}{row.pruned:7.2f}   {pruned_gain!s:<26}"
        f"{row.retrained:9.2f}   {retrained_gain!s}{star}"
    ).rstrip()


def _row(trials: Sequence[Trial], cell: Cell, p_holm: float | None) -> Row:
    first = cell.method == ABS
    pruned, retrained = (_values(trials, cell_key(cell), name) for name in ("pruned", "retrained"))
    return Row(
        cell.level,
        cell.method,
        _mean(pruned),
        _mean(retrained),
        drop=paired(retrained, [100 * trial.dense for trial in trials]),
        pruned_gain=None if first else _gain(trials, cell, "pruned"),
        retrained_gain=None if first else _gain(trials, cell, "retrained"),
        p_holm=p_holm,
    )


def _gain(trials: Sequence[Trial], cell: Cell, name: str) -> Difference:
    return paired(_values(trials, cell_key(cell), name), _values(trials, (cell.level, ABS), name))


def _values(trials: Sequence[Trial], key: tuple[float, str], name: str) -> list[float]:
    return [100 * getattr(cell, name) for trial in trials for cell in trial.cells if cell_key(cell) == key]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
