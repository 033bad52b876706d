"""What the records of an experiment say: means, paired differences to ABS, wins, and what each row cost."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from prunewald.figures import Marks, accuracy_drop
from prunewald.lab.methods import CONTROL, EACH_ALIKE, REFERENCE, SIGMAS, parse
from prunewald.lab.records import Record
from prunewald.statistics import Difference, holm, paired
from prunewald.util.tables import text_table

# As the paper draws them; the others take what is left, in order.
_PAPERS = {"abs": ("black", "x"), "pseudo": ("tab:orange", "^"), "bootstrap": ("tab:blue", "o")}
_OTHERS = [
    ("tab:green", "s"),
    ("tab:red", "v"),
    ("tab:purple", "D"),
    ("tab:brown", "P"),
    ("tab:pink", "*"),
    ("tab:cyan", "<"),
    ("tab:olive", ">"),
]


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
    p_holm: float | None  # of the gain, over the row's levels
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
        drop=_paired([(r.retrained, r.dense) for r in records]) if len(records) > 1 else None,
        pruned_gain=_paired([(own[s].pruned, reference[s].pruned) for s in seeds]) if compared else None,
        gain=_paired([(own[s].retrained, reference[s].retrained) for s in seeds]) if compared else None,
        p_holm=None,
        overlap=statistics.fmean(record.overlap for record in records),
        frozen=statistics.fmean(frozen) if frozen else None,
        compression=statistics.fmean(record.compression for record in records),
        speedup=statistics.fmean(record.speedup for record in records),
        points=single,
    )


def _reference(table: dict[tuple[str, float], dict[int, Record]], row: str, level: float) -> str:
    """What a row is compared with: ABS with the same allocation, or plain ABS where that was not run or is the row."""
    own = parse(row).reference
    return own if own != row and (own, level) in table else REFERENCE


def _adjusted(found: Sequence[Line]) -> list[Line]:
    """Holm's correction over the levels of each row."""
    result = []
    for row in {line.row for line in found}:
        own = [line for line in found if line.row == row]
        tested = [line for line in own if line.gain is not None]
        p = holm([line.gain.p for line in tested if line.gain is not None])
        result += [line for line in own if line.gain is None]
        result += [replace(line, p_holm=value) for line, value in zip(tested, p, strict=True)]
    return result


def wins(found: Sequence[Line]) -> dict[str, tuple[int, int]]:
    """On how many levels a row's mean lies above ABS's, as the paper counts; of how many. It is no test."""
    counted: dict[str, tuple[int, int]] = {}
    for line in found:
        if line.gain is not None:
            won, of = counted.get(line.row, (0, 0))
            counted[line.row] = won + (line.gain.mean > 1e-9), of + 1  # rounding is no win
    return counted


_HEAD = ["pruned", "row", "n", "at once", "over ABS", "retrained", "over dense", "over ABS", "p Holm", "overlap"]
_HEAD += ["frozen", "smaller", "faster"]
_ALLOCATED = "@: how many each layer keeps; over ABS with the same @, and such an ABS over that of each layer alike"


def table(found: Sequence[Line]) -> str:
    """All that the lines say, as text."""
    most = max((line.n for line in found), default=0)
    fewer = any(line.n < most for line in found)
    return "\n".join(
        [
            _by_level(_HEAD, found, _cells, left={1, 4, 7}),
            "",
            "accuracies in %, differences in points with 95 % intervals; * p < 0.05, Holm over the row's levels",
            *(["a difference of a single network is a point, without an interval or a test"] if _single(found) else []),
            "overlap: of the mask with ABS's; frozen: share of the kept weights that no gradient reached",
            *([_ALLOCATED] if _shared_out(found) else []),
            *(["n differs: a row is compared with ABS on the networks that have both"] if fewer else []),
        ]
    )


def short_table(found: Sequence[Line]) -> str:
    """The accuracies alone, in columns that fit a terminal; the control in a sentence above them."""
    pruned = [line for line in found if line.row != CONTROL]
    (control,) = (line for line in found if line.row == CONTROL)
    head = ["pruned", "criterion", "at once", "over ABS", "retrained", "over ABS"]
    return "\n".join(
        [
            f"Test accuracy in %, mean of {control.n} networks; paired differences in points, 95 % intervals.",
            f"Dense {control.dense:.2f}; after as many extra epochs {control.retrained:.2f}: {_shown(control.drop)}",
            "",
            _by_level(head, pruned, _few_cells, left={1, 3, 5}),
            "",
            "* a difference after retraining, at 5 % with Holm's correction over the levels of the criterion",
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
        _shown(line.gain, line.points and line.points[1]),
        "" if line.p_holm is None else f"{line.p_holm:.2g}" + ("*" if line.p_holm < 0.05 else " "),
        f"{line.overlap:.1%}",
        "-" if line.frozen is None else f"{line.frozen:.1%}",
        f"{line.compression:.1f}x",
        f"{line.speedup:.1f}x",
    ]


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


def figure(found: Sequence[Line], title: str, *, basis_points: bool = False, lines: bool = False) -> Any:
    """Accuracy drop against level, as the paper draws it, with intervals; without the sanity rows."""
    others = iter(_OTHERS * len(found))
    rows = dict.fromkeys(line.row for line in found if line.row != CONTROL and not _sanity(line.row))
    marks = [_marks(found, row, _PAPERS.get(_kind(row)) or next(others)) for row in rows]
    control = _marks(found, CONTROL, ("0.5", "_"))
    if len(control.levels) > 1:  # trained on from level to level, as the pruned ones are
        return accuracy_drop([control, *marks], title=title, basis_points=basis_points, lines=lines)
    everywhere = control.mean[0] if control.mean else None
    return accuracy_drop(marks, everywhere, title, basis_points=basis_points, lines=lines)


def _marks(found: Sequence[Line], row: str, look: tuple[str, str]) -> Marks:
    own = [line for line in found if line.row == row]
    # A single network has a point, and no interval.
    mean, low, high = ([_end(line, name) for line in own] for name in ("mean", "low", "high"))
    return Marks(parse(row).label, [line.level for line in own], mean, low, high, *look)


def _end(line: Line, name: str) -> float:
    """The mean accuracy drop, or an end of its interval; of a single network the drop itself."""
    return line.retrained - line.dense if line.drop is None else float(getattr(line.drop, name))


def _kind(row: str) -> str:
    """A name that the paper's own rows have."""
    kind = parse(row)
    return kind.sigma if row == REFERENCE or "formula" in kind.marks else ""


def as_json(found: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines as plain data."""
    return [asdict(line) for line in found]


def _sanity(row: str) -> bool:
    kind = parse(row)
    return kind.sigma == "random" or bool(kind.marks & {"permuted", "inverted"})


def _order(row: str) -> tuple[Any, ...]:
    """The control, ABS, the paper's rows, the others, the sanity rows."""
    kind = parse(row)
    first = (row != CONTROL, kind.scope != EACH_ALIKE, kind.scope, kind.sigma != REFERENCE, _sanity(row))
    return *first, "formula" not in kind.marks, [*SIGMAS, kind.sigma].index(kind.sigma), kind.lam, row


def _shared_out(found: Sequence[Line]) -> bool:
    return any(parse(line.row).scope != EACH_ALIKE for line in found)


def _paired(pairs: Sequence[tuple[float, float]]) -> Difference:
    return paired([100 * a for a, _ in pairs], [100 * b for _, b in pairs])


def _percent(values: Iterable[float]) -> float:
    return 100 * statistics.fmean(values)


def _single(found: Sequence[Line]) -> bool:
    return any(line.points is not None for line in found)


def _shown(difference: Difference | None, point: float | None = None) -> str:
    """A difference with its interval; that of a single network alone."""
    if difference is None:
        return "" if point is None else f"{point:+.2f}"
    return str(difference)
