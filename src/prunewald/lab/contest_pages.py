"""What the contest is shown as: a table and a figure for each network, and the bar over all of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from prunewald.figures import write
from prunewald.lab.bar import bar_text, verdicts
from prunewald.lab.contest_figure import draw
from prunewald.lab.heading import heading
from prunewald.lab.methods import CONTROL, parse
from prunewald.lab.records import Record, data_of, read_records, settings_of
from prunewald.lab.standing import Standing, adjusted, standings
from prunewald.util.files import replacing
from prunewald.util.tables import text_table

_HEAD = [
    "pruned",
    "row",
    "try",
    "n",
    "at once",
    "retrained",
    "change",
    "median",
    "worst",
    "over ABS, same counts",
    "p Holm",
]
_NOTES = """accuracies in %, of the test set; differences in points with 95 % intervals, paired, on the same networks
try: what validation images chose of as many tries for every row; at once: right after pruning, and for a network with
BatchNorm after a comma with its statistics measured anew; change, median, worst: retrained - dense
* p < 0.05, Holm over all tests of all networks"""


def contest_pages(out: str | Path) -> str:
    """Write table, numbers, figure of every network in a folder of the contest, and the bar; returns the texts."""
    folders = sorted(file.parent for file in Path(out).glob("*/settings.json"))
    records = {folder: _results(folder) for folder in folders}
    tuning = {folder: settings_of(folder).tuning for folder in folders}
    each = [standings(title_of(folder), records[folder], tuning[folder]) for folder in folders]
    found = adjusted([one for own in each for one in own])
    texts = []
    for folder in folders:
        own = [one for one in found if one.network == title_of(folder)]
        if own:
            texts.append("\n".join([_head(folder, own), _control(records[folder]), "", table(own)]))
            _write(folder / "contest.txt", texts[-1] + "\n")
            _write(folder / "contest.json", json.dumps([_plain(one) for one in own], indent=1) + "\n")
            write(draw(own, _head(folder, own)), folder / "contest.png")
    bar = bar_text(verdicts(found))
    _write(Path(out) / "bar.txt", bar + "\n")
    return "\n\n".join([bar, *texts])


def _results(folder: Path) -> list[Record]:
    """The records of a folder; of gradual prunings those of the last step, since the others are on their way."""
    records, own = read_records(folder), settings_of(folder)
    return [one for one in records if one.level in (0.0, own.levels[-1])] if own.gradual else records


def title_of(folder: Path) -> str:
    """The name of the network whose results are in a folder."""
    return folder.resolve().name.removesuffix("-contest")


def table(found: Sequence[Standing]) -> str:
    """The standings of one network, level by level, the best row first."""
    rows: list[list[str]] = []
    gaps: list[int] = []
    for level, group in groupby(sorted(found, key=lambda one: (one.level, -one.retrained)), key=lambda one: one.level):
        gaps.append(len(rows))
        for place, one in enumerate(group):
            rows.append([f"{100 * level:g} %" if not place else "", *_cells(one)])
    tries = sorted({one.tries for one in found})
    said = f"tries of each row: {' or '.join(map(str, tries))}, the same for all rows of a level"
    return "\n".join([text_table(_HEAD, rows, left={1, 2, 6, 9}, gaps=gaps[1:]), "", _NOTES, said])


def _head(folder: Path, own: Sequence[Standing]) -> str:
    n = max(one.n for one in own)
    first = f"{title_of(folder)}: {n} networks, dense {own[0].dense:.2f} %"
    return "\n".join([first, *heading(settings_of(folder), data_of(folder), [one.row for one in own])])


def _control(records: Sequence[Record]) -> str:
    """What the extra epochs alone give the dense networks."""
    gains = [100 * (record.retrained - record.dense) for record in records if record.row == CONTROL]
    return f"not pruned, as many extra epochs: {fmean(gains):+.2f} points" if gains else "no dense control yet"


def _cells(one: Standing) -> list[str]:
    star = "" if one.p_holm is None else f"{one.p_holm:.2g}" + ("*" if one.p_holm < 0.05 else " ")
    at_once = f"{one.pruned:.2f}" + ("" if one.at_once == one.pruned else f", {one.at_once:.2f}")
    numbers = [
        at_once,
        f"{one.retrained:.2f}",
        _shown(one.change),
        f"{one.median:+.2f}",
        f"{one.worst:+.2f}",
    ]
    return [parse(one.row).label, one.chosen, str(one.n), *numbers, _shown(one.gain), star]


def _shown(difference: Any) -> str:
    return "" if difference is None else str(difference)


def _plain(one: Standing) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "records"}


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())
