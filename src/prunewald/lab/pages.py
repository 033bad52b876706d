"""What a folder of records is shown as: a table with what the paper says above it, the numbers, and the figure."""

import json
from pathlib import Path

from prunewald.figures import write
from prunewald.lab import summary
from prunewald.lab.records import data_of, experiment_of, read_records
from prunewald.util.files import replacing

# What the paper says in words; its other numbers are in its figures only.
PAPER_SAYS = {
    "fashion-mnist": "dense 81.21 %; over ABS on 11 levels: bootstrap wins 10, pseudo bootstrap 8",
    "cifar10": "dense 79.98 %; over ABS on 11 levels: pseudo bootstrap wins 9",
    "mnist": "dense 98.516 %; over ABS on 11 levels: pseudo bootstrap wins 10; up to 95 % above dense, at 99 % -0.33",
    "imagenet100": "dense 72.682 %; over ABS on 6 levels: pseudo bootstrap wins 6",
}


def describe(folder: str | Path) -> str:
    """The table of a results folder, with what the paper says above it."""
    experiment, records = experiment_of(folder), read_records(folder)
    found = summary.lines(records)
    dense = {record.seed: 100 * record.dense for record in records}
    return "\n".join(
        [
            f"{experiment}: {_networks(len(dense))}, dense {sum(dense.values()) / max(len(dense), 1):.2f} %",
            f"data: {data_of(folder)}",
            f"the paper: {PAPER_SAYS[experiment]}",
            "",
            summary.table(found),
            "",
            "levels on which the mean lies above ABS's (no test):",
            summary.wins_text(found),
        ]
    )


def pages(folder: str | Path) -> list[Path]:
    """Write table, numbers and figure of a results folder beside its records."""
    root, experiment, records = Path(folder), experiment_of(folder), read_records(folder)
    found = summary.lines(records)
    texts = {
        "table.txt": describe(folder) + "\n",
        "lines.json": json.dumps(summary.as_json(found), indent=1) + "\n",
    }
    for name, text in texts.items():
        with replacing(root / name) as file:
            file.write(text.encode())
    seeds = len({record.seed for record in records})
    intervals = "95 % intervals" if seeds > 1 else "no intervals"
    title = f"{data_of(folder)}: pruned and retrained, {_networks(seeds)}, {intervals}\npaper: {PAPER_SAYS[experiment]}"
    # As the paper draws them: the third in basis points, the fourth as lines.
    drawn = summary.figure(found, title, basis_points=experiment == "mnist", lines=experiment == "imagenet100")
    write(drawn, root / "figure.png")
    return [root / name for name in (*texts, "figure.png")]


def _networks(count: int) -> str:
    return "1 network" if count == 1 else f"{count} networks"


def needs(error: ImportError) -> str:
    """What is missing for tables and figures, which a machine that only trains does not need."""
    name = (error.name or str(error)).split(".")[0]
    return f"tables and figures need {name}: pip install 'prunewald[demo]'"
