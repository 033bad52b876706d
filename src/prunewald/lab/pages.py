"""What a folder of records is shown as: a table with what the paper says above it, the numbers, figures, a page."""

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from prunewald.figures import write
from prunewald.lab import summary
from prunewald.lab.heading import classes, heading, note
from prunewald.lab.records import Record, data_of, read_records, settings_of
from prunewald.lab.settings import Settings
from prunewald.lab.showing import page
from prunewald.util.files import replacing

# What the paper says in words; its other numbers are in its figures only.
PAPER_SAYS = {
    "fashion-mnist": "dense 81.21 %; over ABS on 11 levels: bootstrap wins 10, pseudo bootstrap 8",
    "cifar10": "dense 79.98 %; over ABS on 11 levels: pseudo bootstrap wins 9",
    "mnist": "dense 98.516 %; over ABS on 11 levels: pseudo bootstrap wins 10; up to 95 % above dense, at 99 % -0.33",
    "imagenet100": "dense 72.682 %; over ABS on 6 levels: pseudo bootstrap wins 6",
}


def describe(folder: str | Path) -> str:
    """The table of a results folder, with what it is of and what the paper says above it."""
    settings, records = settings_of(folder), read_records(folder)
    found = summary.lines(records)
    dense = {record.seed: 100 * record.dense for record in records}
    seeds = f"{_networks(len(dense))}, dense {sum(dense.values()) / max(len(dense), 1):.2f} %{_seeds(dense)}"
    return "\n".join(
        [
            f"{settings.experiment}: {seeds}",
            *heading(settings, data_of(folder), _rows(records)),
            f"the paper: {PAPER_SAYS[settings.experiment]}",
            *_warning(settings, dense.values()),
            "",
            summary.table(found),
            "",
            "levels on which the mean lies above ABS's (no test):",
            summary.wins_text(found),
        ]
    )


def _warning(settings: Settings, dense: Collection[float]) -> list[str]:
    """Say it where networks learned next to nothing, as those of imagenet100's quick preset."""
    chance = 100 / classes(settings)
    if not dense or sum(dense) / len(dense) > 2 * chance:
        return []
    return [f"the dense networks are near chance ({chance:g} %): nothing below tells one row from another"]


def _seeds(seeds: Collection[int]) -> str:
    return f" (seeds {min(seeds)} to {max(seeds)})" if len(seeds) > 1 else ""


def _rows(records: Iterable[Record]) -> list[str]:
    return sorted({record.row for record in records})


def pages(folder: str | Path) -> list[Path]:
    """Write table, numbers, figures and page of a results folder beside its records."""
    root, settings, records = Path(folder), settings_of(folder), read_records(folder)
    found = summary.lines(records)
    texts = {
        "table.txt": describe(folder) + "\n",
        "lines.json": json.dumps(summary.as_json(found), indent=1) + "\n",
    }
    for name, text in texts.items():
        with replacing(root / name) as file:
            file.write(text.encode())
    shown = page(root)  # which needs no matplotlib
    figures = _figures(found, settings, note(settings, data_of(folder), _rows(records)))
    for name, figure in figures.items():
        write(figure, root / name)
    return [*(root / name for name in (*texts, *figures)), shown]


def _figures(found: Sequence[summary.Line], settings: Settings, text: str) -> dict[str, Any]:
    """The paper's figure; and where rows have allocations, one of what these change and what the criterion does."""
    experiment, title = settings.experiment, f"{settings.experiment}: test accuracy, pruned and retrained"
    # As the paper draws them: the third in basis points, the fourth as lines.
    how: dict[str, Any] = {"basis_points": experiment == "mnist", "lines": experiment == "imagenet100"}
    drawn = {"figure.png": summary.figure(found, title, note=f"{text}\nthe paper: {PAPER_SAYS[experiment]}", **how)}
    apart = summary.apart(found, title, note=text)
    return drawn if apart is None else drawn | {"apart.png": apart}


def _networks(count: int) -> str:
    return "1 network" if count == 1 else f"{count} networks"


def needs(error: ImportError) -> str:
    """What is missing for tables and figures, which a machine that only trains does not need."""
    name = (error.name or str(error)).split(".")[0]
    return f"tables and figures need {name}: pip install 'prunewald[demo]'"
