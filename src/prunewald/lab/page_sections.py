"""The sections of a page that records fill: accuracies with intervals, paired differences, settings and seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from prunewald.lab import summary
from prunewald.lab.contest_pages import title_of
from prunewald.lab.heading import heading
from prunewald.lab.methods import CONTROL, EACH_ALIKE, REFERENCE, parse
from prunewald.lab.palette import looks
from prunewald.lab.records import Record, data_of, read_records, settings_of
from prunewald.lab.settings import Settings
from prunewald.lab.standing import Standing, adjusted, difference, standings
from prunewald.statistics import Difference
from prunewald.util.text import some
from prunewald.web.accuracies import Look, method, of_differences, series

Data = dict[str, Any]

INTERVALS = (
    "marks: means over networks with 95 % t intervals; differences: paired, on the same networks, with 95 % t intervals"
)
_COMPARED = "differences are over ABS with the same @; those of an ABS with an @ are over ABS, each layer alike"
_CHOSEN = "each row: of as many tries for every row the one that validation images chose"
_LISTED = 6  # so many different values are told one by one
_OVER_ABS = "ABS with the same counts"


def network(name: str, settings: Settings, data: str, records: Sequence[Record]) -> Data:
    """The accuracies of one network's records, row by row."""
    contest = any("," in record.row for record in records)  # other learning rates are tries of a row
    methods = _of_standings(name, settings, records) if contest else _of_lines(records)
    control = [record for record in records if record.row == CONTROL]
    lines = [*heading(settings, data, sorted({record.row for record in records})), *_control(control), INTERVALS]
    if any(one["allocation"] for one in methods):
        lines.append(_COMPARED)
    found = {"name": name, "share": True, "lines": lines, "notes": [_CHOSEN] if contest else [], "methods": methods}
    dense = {record.seed: record.dense for record in records}
    return found | ({"dense": sum(dense.values()) / len(dense)} if dense else {})


def settings_groups(settings: Settings, data: str, records: Sequence[Record], name: str = "") -> list[Data]:
    """The settings of a run, its seeds, and the machines that its records were made on."""
    seeds = sorted({record.seed for record in records})
    rows = [[key.replace("_", " "), _said(value)] for key, value in asdict(settings).items() if key != "rows"]
    rows += [["rows", ", ".join(sorted({record.row for record in records}))], ["data", data]]
    groups = [{"name": f"settings {name}".strip(), "rows": rows}]
    groups.append({"name": f"seeds {name}".strip(), "rows": [["seeds", ", ".join(map(str, seeds))]]})
    made = environments(record.environment for record in records)
    return [*groups, *(one | {"name": f"environment {name}".strip()} for one in made)]


def environments(found: Iterable[Mapping[str, Any]]) -> list[Data]:
    """What records were made with, as one group; where they differ, with every value, or the range of many numbers."""
    values: dict[str, dict[Any, None]] = {}
    for one in found:
        for key, value in one.items():
            values.setdefault(str(key), {})[value if isinstance(value, (int, float)) else str(value)] = None
    return (
        [{"name": "environment", "rows": [[key, _all_of(list(own))] for key, own in values.items()]}] if values else []
    )


def _all_of(values: Sequence[Any]) -> str:
    numbers = [value for value in values if isinstance(value, (int, float))]
    if len(numbers) == len(values) > _LISTED:
        return f"{min(numbers):g} to {max(numbers):g}"
    return some(map(str, values), _LISTED)


def read_network(folder: Path) -> tuple[Settings, str, list[Record]]:
    """What a results folder holds; of gradual prunings the records of the last step."""
    settings, records = settings_of(folder), read_records(folder)
    if settings.gradual:
        records = [one for one in records if one.level in (0.0, settings.levels[-1])]
    seeds = sorted({record.seed for record in records})
    known = replace(settings, first_seed=seeds[0], repetitions=len(seeds)) if seeds else settings
    return known, data_of(folder), records


def network_of(folder: Path) -> Data:
    """The accuracies of one results folder."""
    return network(title_of(folder), *read_network(folder))


def _of_lines(records: Sequence[Record]) -> list[Data]:
    lines = summary.lines(records)
    rows = list(dict.fromkeys(line.row for line in lines if not summary.upside_down(line.row)))
    chained = sum(line.row == CONTROL for line in lines) > 1
    rows = [row for row in rows if row != CONTROL or chained]
    look = looks(rows)
    found = []
    for row in rows:
        own = [line for line in lines if line.row == row]
        mine = [record for record in records if record.row == row]
        gain = {
            "retrained": {line.level: line.gain for line in own if line.gain is not None},
            "pruned": {line.level: line.pruned_gain for line in own if line.pruned_gain is not None},
        }
        over = parse(parse(row).reference).label
        found.append(_method(row, look[row], _series(mine), gain, over))
    return found


def _of_standings(name: str, settings: Settings, records: Sequence[Record]) -> list[Data]:
    standing = adjusted(standings(name, records, settings.tuning))
    rows = list(dict.fromkeys(one.row for one in standing))
    look = looks(rows)
    found = []
    for row in rows:
        own = [one for one in standing if one.row == row]
        mine = [record for one in own for record in one.records.values()]
        gain = {
            "retrained": {one.level: one.gain for one in own if one.gain is not None},
            "pruned": {one.level: one.gain_at_once for one in own if one.gain_at_once is not None},
        }
        over = _OVER_ABS
        if parse(row).sigma == REFERENCE and row != REFERENCE:  # what the allocation alone changes
            plain = {one.level: one for one in standing if one.row == REFERENCE}
            gain, over = _over(own, plain), parse(REFERENCE).label
        found.append(_method(row, look[row], _series(mine), gain, over) | {"chosen": _tries(own)})
    return found


def _over(own: Sequence[Standing], versus: Mapping[float, Standing]) -> dict[str, dict[float, Difference]]:
    """The paired differences over another row, level by level."""
    found: dict[str, dict[float, Difference]] = {"retrained": {}, "pruned": {}}
    for one in (one for one in own if one.level in versus):
        for when in found:
            gap = difference(one.records, versus[one.level].records, pruned=when == "pruned")
            if gap is not None:
                found[when][one.level] = gap
    return found


def _tries(own: Sequence[Standing]) -> str:
    return ", ".join(dict.fromkeys(one.chosen for one in own))


def _series(records: Sequence[Record]) -> dict[str, Mapping[float, list[float]]]:
    """Accuracies by when they were measured, and by level."""
    levels = sorted({record.level for record in records})
    by_level = {level: [record for record in records if record.level == level] for level in levels}
    retrained = {level: [record.retrained for record in own] for level, own in by_level.items()}
    pruned = {level: [_at_once(record) for record in own] for level, own in by_level.items()}
    return {"retrained": retrained, "pruned": pruned}


def _at_once(record: Record) -> float:
    return record.pruned if record.recalibrated is None else record.recalibrated


def _method(
    row: str,
    look: tuple[str, str, str],
    own: Mapping[str, Mapping[float, list[float]]],
    gains: Mapping[str, Mapping[float, Difference]],
    over: str,
) -> Data:
    kind = parse(row)
    color, mark, fill = look
    allocation = "" if kind.scope == EACH_ALIKE else kind.scope
    drawn = {when: series(values) for when, values in own.items()}
    gain = {when: of_differences(values, 0.01) for when, values in gains.items() if values}
    criterion = kind.label.replace(f" @{kind.scope}", "")
    return method(kind.label, criterion, allocation, Look(color, mark, fill), drawn, gain or None, over)


def _control(records: Sequence[Record]) -> list[str]:
    gains = [100 * (record.retrained - record.dense) for record in records]
    return [f"not pruned, as many extra epochs: {sum(gains) / len(gains):+.2f} points"] if gains else []


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
