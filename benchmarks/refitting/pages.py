"""The files that are made of the records."""

from pathlib import Path

from benchmarks.refitting.comparing import Compared
from benchmarks.refitting.figure import draw
from benchmarks.refitting.records import PACKED, unpack
from benchmarks.refitting.tables import (
    bar_text,
    choosing_text,
    counts_text,
    dense_text,
    examples_text,
    excerpt_text,
    published_text,
    reconstruction_text,
)

_INTERVALS = (
    "Points of test accuracy against dense, with 95 % t intervals over n networks; *: p < 0.05 by Holm over the table."
)


def texts(place: Path) -> dict[str, str]:
    """The tables by the names of their files."""
    records, reconstructions, _ = unpack(place / PACKED)
    found = Compared(records)
    said = {
        "bar": (bar_text(found), ""),
        "dense": (dense_text(found), "The dense networks; seconds of training, one thread of a shared machine."),
        "published": (
            published_text(found),
            f"{_INTERVALS} Kept: of all weights that ours prunes, the last layer's too.",
        ),
        "counts": (counts_text(found), f"{_INTERVALS} All with as many weights a layer as LAMP of |w| gives."),
        "choosing": (
            choosing_text(found),
            "Refitted, against the second moment's mask refitted; cells are networks and levels.",
        ),
        "examples": (examples_text(found), _INTERVALS),
        "reconstruction": (
            reconstruction_text(reconstructions),
            "SparseGPT's mask for both; squared error over the dense outputs' squares, test examples, percent.",
        ),
    }
    made = {"excerpt.md": excerpt_text(found) + "\n"}
    return made | {
        f"{name}.txt": "\n\n".join(part for part in (note, text) if part) + "\n" for name, (text, note) in said.items()
    }


def write(place: Path) -> None:
    """Write tables and figure beside the records."""
    for name, text in texts(place).items():
        (place / name).write_text(text, encoding="utf-8")
    records, _, _ = unpack(place / PACKED)
    draw(Compared(records)).savefig(place / "accuracy.png", dpi=110)
