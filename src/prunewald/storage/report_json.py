"""A pruning report as JSON data: a list for each tensor, numbers to the nine digits that tell every float32 apart."""

import math
from dataclasses import fields
from typing import Any, cast

from prunewald.pruning.refitted import Refit
from prunewald.pruning.report import Report, TensorReport
from prunewald.storage.index import check_shape, is_count

_SETTINGS = {field.name for field in fields(Report) if field.type is str}
_REQUIRED = {"criterion", "uncertainty", "scope"}


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain data, as short as can be."""
    said = {name: getattr(report, name) for name in sorted(_SETTINGS)}
    settings = {name: word for name, word in said.items() if word or name in _REQUIRED}
    after = {} if report.refit is None else {"refit": report.refit.to_dict()}
    return settings | {"notes": list(report.notes), "rows": [_to_list(row) for row in report.rows]} | after


def from_json(data: Any) -> Report:
    """Read a report; a ValueError if the data is none."""
    match data:
        case {"notes": list(notes), "rows": list(rows), **settings}:
            refit = settings.pop("refit", None)
            words = all(isinstance(word, str) for word in [*notes, *settings.values()])
            if words and settings.keys() >= _REQUIRED:
                known = {name: word for name, word in settings.items() if name in _SETTINGS}
                done = None if refit is None else Refit.from_dict(refit)
                rows = [_row(row) for row in rows]
                return Report(rows, notes=tuple(notes), refit=done, **cast(dict[str, Any], known))
    raise ValueError(f"the report makes no sense: {str(data)[:200]}")


def _to_list(row: TensorReport) -> list[Any]:
    numbers = (row.threshold, row.dead, row.correlation, row.overlap)
    return [row.name, list(row.shape), row.weights, row.kept, *map(_short, numbers)]


def _short(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else float(f"{number:.9g}")


def _row(row: Any) -> TensorReport:
    match row:
        case [str(name), list(shape), weights, kept, threshold, dead, correlation, overlap]:
            numbers = [None if x is None else _number(x) for x in (threshold, dead, correlation, overlap)]
            if all(map(is_count, [*shape, weights, kept])) and kept <= weights > 0:
                check_shape(shape)
                known = [math.nan if x is None else x for x in numbers[2:]]
                return TensorReport(name, tuple(shape), weights, kept, numbers[0], numbers[1], known[0], known[1])
    raise ValueError(f"the report has a row that makes no sense: {str(row)[:200]}")


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"the report has {str(value)[:50]!r} for a number")
    return float(value)
