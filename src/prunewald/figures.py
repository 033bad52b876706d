"""Figures. Needs matplotlib, imported when a figure is drawn."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Marks:
    """One method in a figure: at every pruning level a mean with its interval, and how it is drawn."""

    label: str
    levels: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    color: str = "black"
    marker: str = "x"


def accuracy_drop(methods: Sequence[Marks], control: float | None = None, title: str = "") -> "Figure":
    """Draw accuracy drop against pruning level, in points, as in the paper's Figures 1 to 3.

    Small drops matter most and large ones must still fit: the scale is linear within one point of zero and
    logarithmic beyond. Levels stand side by side, evenly spaced. `control` is what the extra training alone
    gives the unpruned network.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    levels = sorted({level for method in methods for level in method.levels})
    axes.axhline(0, color="0.5", linewidth=0.9)
    if control is not None:
        axes.axhline(control, color="0.5", linewidth=0.9, linestyle="--", label="not pruned, trained on")
    for place, method in enumerate(methods):
        shift = 0.14 * (place - (len(methods) - 1) / 2)
        axes.errorbar(
            [levels.index(level) + shift for level in method.levels],
            method.mean,
            yerr=[_gaps(method.mean, method.low), _gaps(method.high, method.mean)],
            label=method.label,
            color=method.color,
            marker=method.marker,
            linestyle="none",
            markersize=7,
            markeredgewidth=1.6,
            elinewidth=1,
            capsize=3,
        )
    _scale_points(axes)
    axes.set_xticks(range(len(levels)), [f"{100 * level:g} %" for level in levels])
    axes.set_xlabel("pruned weights of each fully connected layer")
    axes.set_ylabel("accuracy drop (points)")
    axes.set_title(title, fontsize="medium")
    axes.legend(frameon=False, loc="best")
    return figure


def write(figure: "Figure", path: str | Path) -> None:
    """Write a figure as PNG; the file is there whole or not at all."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(temporary, format="png", dpi=160)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _scale_points(axes: "Axes") -> None:
    """Make y linear within a point of zero and logarithmic beyond, with ticks in plain numbers."""
    axes.set_yscale("symlog", linthresh=1, linscale=1)
    low, high = axes.get_ylim()
    steps = (0.5, 1, 2, 5, 10, 20, 50)
    ticks = [tick for tick in sorted({0, *steps, *(-step for step in steps)}) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _gaps(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    return [high - low for high, low in zip(upper, lower, strict=True)]
