"""What the records of an experiment say: means, paired differences to ABS, wins, and what each row cost."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from prunewald.figures import Marks, accuracy_drop, effects
from prunewald.lab.methods import CONTROL, EACH_ALIKE, REFERENCE, SIGMAS, parse
from prunewald.lab.palette import looks
from prunewald.lab.records import Record
from prunewald.statistics import Difference, holm, paired
from prunewald.util.tables import text_table

RANDOM = "random"


@dataclass(frozen=True)
class Spread:
    """The median of some differences, and the worst of them: a mean may hide that one network collapsed."""

    median: float
    worst: float


@dataclass(frozen=True)
class Line:
    """One row at one level: accuracies in percent, differences in points, over the networks that have both sides."""

    level: float
    row: str
    n: int
    pruned: float
    retrained: float
    validation: float
    dense: float  # the same networks before pruning
    drop: Difference | None  # retrained - dense; None for a single network
    pruned_gain: Difference | None  # over ABS
    gain: Difference | None  # over ABS, after retraining
    drop_spread: Spread  # of the networks behind the two means
    gain_spread: Spread | None
    p_holm: float | None  # of the gain, over all tests of the table
    random_gain: Difference | None  # over a random order with the same allocation, after retraining
    overlap: float
    frozen: float | None
    compression: float
    speedup: float
    points: tuple[float, float] | None = None  # over ABS, pruned and retrained, where a single network has both sides


def lines(records: Iterable[Record]) -> list[Line]:
    """Every row at every level, level by level. Needs scipy."""
    table: dict[tuple[str, float], dict[int, Record]] = {}
    for record in records:
        table.setdefault((record.row, record.level), {})[record.seed] = record
    found = [_line(table, row, level) for row, level in table]
    return sorted(_adjusted(found), key=lambda line: (line.level, _order(line.row)))


def _line(table: dict[tuple[str, float], dict[int, Record]], row: str, level: float) -> Line:
    own, versus = table[row, level], _reference(table, row, level)
    reference = table.get((versus, level), {})
    seeds = sorted(own.keys() & reference.keys()) if row != versus else []
    compared = row not in (versus, CONTROL) and len(seeds) > 1
    records = [own[seed] for seed in sorted(own)]
    drops = [(record.retrained, record.dense) for record in records]
    gains = [(own[seed].retrained, reference[seed].retrained) for seed in seeds]
    frozen = [record.frozen for record in records if record.frozen is not None]
    single = None
    if row not in (versus, CONTROL) and len(seeds) == 1:
        one, other = own[seeds[0]], reference[seeds[0]]
        single = 100 * (one.pruned - other.pruned), 100 * (one.retrained - other.retrained)
    return Line(
        level=level,
        row=row,
        n=len(own),
        pruned=_percent(record.pruned for record in records),
        retrained=_percent(record.retrained for record in records),
        validation=_percent(record.validation for record in records),
        dense=_percent(record.dense for record in records),
        drop=_paired(drops) if len(records) > 1 else None,
        pruned_gain=_paired([(own[s].pruned, reference[s].pruned) for s in seeds]) if compared else None,
        gain=_paired(gains) if compared else None,
        drop_spread=_spread(drops),
        gain_spread=_spread(gains) if compared else None,
        p_holm=None,
        random_gain=_over_random(table, row, level),
        overlap=statistics.fmean(record.overlap for record in records),
        frozen=statistics.fmean(frozen) if frozen else None,
        compression=statistics.fmean(record.compression for record in records),
        speedup=statistics.fmean(record.speedup for record in records),
        points=single,
    )


def _over_random(table: dict[tuple[str, float], dict[int, Record]], row: str, level: float) -> Difference | None:
    own, kind = table[row, level], parse(row)
    order = table.get((replace(kind, sigma=RANDOM, lam=0.0, marks=frozenset()).text, level), {})
    seeds = sorted(own.keys() & order.keys())
    if kind.sigma in (RANDOM, CONTROL) or len(seeds) < 2:
        return None
    return _paired([(own[seed].retrained, order[seed].retrained) for seed in seeds])


def _reference(table: dict[tuple[str, float], dict[int, Record]], row: str, level: float) -> str:
    """What a row is compared with: ABS with the same allocation, or plain ABS where that was not run or is the row."""
    own = parse(row).reference
    return own if own != row and (own, level) in table else REFERENCE


def _adjusted(found: Sequence[Line]) -> list[Line]:
    """Holm's correction over all rows and levels: whoever looks for stars looks at the whole table."""
    p = iter(holm([line.gain.p for line in found if line.gain is not None]))
    return [line if line.gain is None else replace(line, p_holm=next(p)) for line in found]


def wins(found: Sequence[Line]) -> dict[str, tuple[int, int]]:
    """On how many levels a row's mean lies above ABS's, as the paper counts; of how many. It is no test."""
    counted: dict[str, tuple[int, int]] = {}
    for line in found:
        if line.gain is not None:
            won, of = counted.get(line.row, (0, 0))
            counted[line.row] = won + (line.gain.mean > 1e-9), of + 1  # rounding is no win
    return counted


_HEAD = ["pruned", "row", "n", "at once", "over ABS", "retrained", "over dense", "median", "worst", "over ABS"]
_HEAD += ["median", "worst", "p Holm", "over random", "overlap", "frozen", "smaller", "faster"]
_ALLOCATED = "@: how many each layer keeps; over ABS with the same @ (else plain ABS), such an ABS over plain ABS"


def table(found: Sequence[Line]) -> str:
    """All that the lines say, as text."""
    most = max((line.n for line in found), default=0)
    fewer, tests = any(line.n < most for line in found), sum(line.gain is not None for line in found)
    return "\n".join(
        [
            _by_level(_HEAD, found, _cells, left={1, 4, 9, 13}),
            "",
            "test accuracies in %, means over n networks; differences in points, on the same networks: mean with its",
            "95 % t interval, median, and the worst network's",
            *(["a difference of a single network is a point, without an interval or a test"] if _single(found) else []),
            f"p Holm: paired t test of the retrained, adjusted for all {tests} tests of this table; * below 0.05",
            "overlap: of the mask with ABS's (in rounds: of each round, from the same survivors)",
            "frozen: share of the kept weights that no gradient reached",
            "smaller, faster: parameters and multiplications, dense over sparse: what could be saved, not measured",
            *([_ALLOCATED] if _shared_out(found) else []),
            *(["n differs: a row is compared with ABS on the networks that have both"] if fewer else []),
        ]
    )


def short_table(found: Sequence[Line]) -> str:
    """The accuracies alone, in columns that fit a terminal; the control in a sentence above them."""
    pruned = [line for line in found if line.row != CONTROL]
    (control,) = (line for line in found if line.row == CONTROL)
    tests = sum(line.gain is not None for line in found)
    head = ["pruned", "criterion", "at once", "over ABS", "retrained", "over ABS"]
    return "\n".join(
        [
            f"Test accuracy in %, mean of {control.n} networks; paired differences in points, 95 % intervals.",
            f"Dense {control.dense:.2f}; after as many extra epochs {control.retrained:.2f}: {_shown(control.drop)}",
            "",
            _by_level(head, pruned, _few_cells, left={1, 3, 5}),
            "",
            f"* a difference after retraining, at 5 % with Holm's correction over the {tests} tests of this table",
        ]
    )


def _by_level(head: list[str], found: Sequence[Line], cells: Callable[[Line], list[str]], left: set[int]) -> str:
    """A table whose first column has the level where a new one begins, with an empty line before it."""
    first = [at for at, line in enumerate(found) if at == 0 or line.level != found[at - 1].level]
    rows = [[f"{100 * line.level:g} %" if at in first else "", *cells(line)] for at, line in enumerate(found)]
    return text_table(head, rows, left=left, gaps=first[1:])


def _few_cells(line: Line) -> list[str]:
    star = " *" if line.p_holm is not None and line.p_holm < 0.05 else ""
    accuracies = [f"{line.pruned:.2f}", _shown(line.pruned_gain), f"{line.retrained:.2f}"]
    return [parse(line.row).label, *accuracies, _shown(line.gain) + star]


def _cells(line: Line) -> list[str]:
    return [
        parse(line.row).label,
        str(line.n),
        f"{line.pruned:.2f}",
        _shown(line.pruned_gain, line.points and line.points[0]),
        f"{line.retrained:.2f}",
        f"{line.retrained - line.dense:+.2f}",
        *_spread_cells(line.drop_spread),
        _shown(line.gain, line.points and line.points[1]),
        *_spread_cells(line.gain_spread),
        "" if line.p_holm is None else f"{line.p_holm:.2g}" + ("*" if line.p_holm < 0.05 else " "),
        _shown(line.random_gain),
        f"{line.overlap:.1%}",
        "-" if line.frozen is None else f"{line.frozen:.1%}",
        f"{line.compression:.1f}x",
        f"{line.speedup:.1f}x",
    ]


def _spread_cells(spread: Spread | None) -> list[str]:
    return ["", ""] if spread is None else [f"{spread.median:+.2f}", f"{spread.worst:+.2f}"]


def wins_text(found: Sequence[Line]) -> str:
    """The wins over levels, one row a line."""
    counted = {parse(row).label: f"{won} of {of}" for row, (won, of) in wins(found).items()}
    width = max(map(len, counted), default=0)
    return "\n".join(f"  {label:<{width}}  {text}" for label, text in counted.items())


def choice(records: Iterable[Record]) -> list[tuple[str, float]]:
    """Mean validation accuracy in percent by row, best first: for choosing a lambda*, on seeds kept apart for it."""
    values: dict[str, dict[float, list[float]]] = {}
    for record in records:
        if record.row != CONTROL:
            values.setdefault(record.row, {}).setdefault(record.level, []).append(record.validation)
    means = [(row, _percent(map(statistics.fmean, levels.values()))) for row, levels in values.items()]
    return sorted(means, key=lambda pair: (-pair[1], _order(pair[0])))


def figure(
    found: Sequence[Line], title: str, *, note: str = "", basis_points: bool = False, lines: bool = False
) -> Any:
    """Accuracy drop against level, as the paper draws it, and below it the differences over ABS, with intervals.

    A random order is there, the other sanity rows are not.
    """
    rows = list(dict.fromkeys(line.row for line in found if line.row != CONTROL and not upside_down(line.row)))
    look = looks([CONTROL, *rows])
    drops, gains = ([_marks(found, row, look[row], of) for row in rows] for of in ("drop", "gain"))
    control = _marks(found, CONTROL, look[CONTROL], "drop")
    if len(control.levels) > 1:  # trained on from level to level, as the pruned ones are
        drops, everywhere = [control, *drops], None
    else:
        everywhere = control.mean[0] if control.mean else None
    if _shared_out(found):
        note = f"{note}\n{_ALLOCATED}"
    how: dict[str, Any] = {"note": note, "basis_points": basis_points, "lines": lines}
    return accuracy_drop(drops, everywhere, title, gains=[marks for marks in gains if marks.levels], **how)


def apart(found: Sequence[Line], title: str, *, note: str = "") -> Any | None:
    """What the allocation changes and what the criterion changes with the same counts; None where no ABS tells them.

    Left what ABS loses where each layer is pruned alike, then what another allocation gives ABS, then what another
    criterion gives where each layer keeps as many as with ABS.
    """
    rows = list(dict.fromkeys(line.row for line in found if line.row != CONTROL and not upside_down(line.row)))
    allocated = [row for row in rows if parse(row).sigma == REFERENCE and row != REFERENCE]
    told = {REFERENCE, *allocated}
    if REFERENCE not in rows or not allocated:
        return None
    look = looks(rows)
    chosen = [row for row in rows if row not in told and parse(row).reference in told]
    drawn = {row: _marks(found, row, look[row], "gain") for row in (*allocated, *chosen)}
    panels = {
        "ABS, each layer alike:\nover dense": [_marks(found, REFERENCE, look[REFERENCE], "drop")],
        "how many from each layer:\nABS over ABS, each layer alike": [drawn[row] for row in allocated],
        "which ones:\nover ABS with the same counts": [drawn[row] for row in chosen if drawn[row].levels],
    }
    return effects({name: marks for name, marks in panels.items() if marks}, title, note)


def _marks(found: Sequence[Line], row: str, look: tuple[str, str, str], of: str) -> Marks:
    """The drops or the gains of a row, where it has any."""
    own = {line.level: known for line in found if line.row == row and (known := _drawn(line, of)) is not None}
    mean, low, high = ([getattr(known, name) for known in own.values()] for name in ("mean", "low", "high"))
    counts = sorted({known.n for known in own.values()})
    many = " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))
    label = parse(row).label + (f", n = {many}" if many else "")
    return Marks(label, list(own), mean, low, high, *look)


def _drawn(line: Line, of: str) -> Difference | None:
    """The drop or the gain of a line; that of a single network is a point, an interval without length."""
    known: Difference | None = getattr(line, of)
    point = line.retrained - line.dense if of == "drop" else line.points and line.points[1]
    return known if known is not None or point is None else Difference(point, point, point, math.nan, 1)


def as_json(found: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as plain data."""
    return [asdict(line) for line in found]


def _sanity(row: str) -> bool:
    return parse(row).sigma == RANDOM or upside_down(row)


def upside_down(row: str) -> bool:
    """A row that is there to be worse: of the same scores, but in the wrong places."""
    return bool(parse(row).marks & {"permuted", "inverted"})


def _order(row: str) -> tuple[Any, ...]:
    """The control, ABS, the paper's rows, the others, the sanity rows."""
    kind = parse(row)
    first = (row != CONTROL, kind.scope != EACH_ALIKE, kind.scope, kind.sigma != REFERENCE, _sanity(row))
    return *first, "formula" not in kind.marks, [*SIGMAS, kind.sigma].index(kind.sigma), kind.lam, row


def _shared_out(found: Sequence[Line]) -> bool:
    return any(parse(line.row).scope != EACH_ALIKE for line in found)


def _paired(pairs: Sequence[tuple[float, float]]) -> Difference:
    return paired([100 * a for a, _ in pairs], [100 * b for _, b in pairs])


def _spread(pairs: Sequence[tuple[float, float]]) -> Spread:
    gaps = [100 * (a - b) for a, b in pairs]
    return Spread(statistics.median(gaps), min(gaps))


def _percent(values: Iterable[float]) -> float:
    return 100 * statistics.fmean(values)


def _single(found: Sequence[Line]) -> bool:
    return any(line.points is not None for line in found)


def _shown(difference: Difference | None, point: float | None = None) -> str:
    """A difference with its interval; that of a single network alone."""
    if difference is None:
        return "" if point is None else f"{point:+.2f}"
    return str(difference)
