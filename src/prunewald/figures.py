"""Figures: numbers in, a matplotlib figure out. Matplotlib is imported when one is drawn.

A figure is a plain `matplotlib.figure.Figure`: change it as you like, show it in a notebook, or `write` it as PNG.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from prunewald.strategies import Sensitivity
from prunewald.util.files import FilePath, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FEW = 3  # methods whose legend fits into the figure


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


def accuracy_drop(
    methods: Sequence[Marks],
    control: float | None = None,
    title: str = "",
    *,
    lines: bool = False,
    basis_points: bool = False,
) -> "Figure":
    """Draw accuracy drop against pruning level, in points, as in the paper's Figures 1 to 3; `lines` as in its fourth.

    Small drops matter most and large ones must still fit: the scale is linear within one point of zero and
    logarithmic beyond; with `basis_points`, hundredths of a point, within ten of them. Levels stand side by side,
    evenly spaced. `control` is what the extra training alone gives the unpruned network.
    """
    from matplotlib.figure import Figure

    scale, many = 100 if basis_points else 1, len(methods) > _FEW
    levels = sorted({level for method in methods for level in method.levels})
    width = max(7.0, 0.11 * len(levels) * len(methods)) + (3 if many else 0)
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="0.5", linewidth=0.9)
    if control is not None:
        axes.axhline(scale * control, color="0.5", linewidth=0.9, linestyle="--", label="not pruned, trained on")
    step = min(0.14, 0.8 / max(len(methods), 1))  # a level's marks end before the next one's begin
    for place, method in enumerate(methods):
        shift = step * (place - (len(methods) - 1) / 2)
        x = [levels.index(level) + shift for level in method.levels]
        _draw_marks(axes, method, x, scale, "-" if lines else "none", small=many)
    _scale_points(axes, 10 if basis_points else 1)
    _label_levels(axes, levels)
    axes.set_xlabel("pruned weights of the fully connected layers")
    axes.set_ylabel(f"accuracy drop ({'basis points' if basis_points else 'points'})")
    axes.set_title(title, fontsize="medium")
    if many:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    else:
        axes.legend(frameon=False, loc="best")
    return figure


def sigma_agreement(a: Tensor, b: Tensor, labels: tuple[str, str] = ("sigma a", "sigma b")) -> "Figure":
    """Draw one uncertainty against another, weight by weight: calibrated against each other, they lie on the diagonal.

    Both axes are logarithmic; the line through the cloud joins the medians of ten equal groups.
    """
    from matplotlib.figure import Figure

    both = (a > 0) & (b > 0) & a.isfinite() & b.isfinite()
    order = b[both].argsort()
    x, y = b[both][order].double().cpu(), a[both][order].double().cpu()
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.add_subplot()
    step = max(1, len(x) // 4000)
    axes.loglog(x[::step], y[::step], ".", color="0.7", markersize=2, rasterized=True)
    ends = [float(torch.cat([x, y]).min()), float(torch.cat([x, y]).max())]
    axes.plot(ends, ends, color="black", linewidth=0.9, label="equal")
    groups = [(p.median(), q.median()) for p, q in zip(x.chunk(10), y.chunk(10), strict=True)]
    axes.plot(*zip(*groups, strict=True), "o-", color="tab:blue", markersize=4, label="medians of tenths")
    axes.set_xlabel(labels[1])
    axes.set_ylabel(labels[0])
    axes.legend(frameon=False)
    return figure


def sigma_correlations(found: Mapping[str, Mapping[str, float]], reference: str) -> "Figure":
    """Draw the rank correlation of several uncertainties with a reference, one mark for each layer.

    `found` has by the name of the uncertainty, and then by layer, its correlation with the `reference`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.5 * len(found) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    layers = list(next(iter(found.values())))
    for layer, marker in zip(layers, "os^vD", strict=False):
        values = [by_layer[layer] for by_layer in found.values()]
        axes.plot(values, range(len(found)), marker, label=layer, markersize=6, alpha=0.8)
    axes.axvline(0, color="0.5", linewidth=0.9)
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.9")
    axes.set_xlabel(f"rank correlation with: {reference}")
    axes.legend(frameon=False, loc="upper right")
    return figure


def sensitivity(scan: Sensitivity, label: str = "accuracy") -> "Figure":
    """Draw what the model scores against the sparsity of one layer: a line for each layer, from first to last.

    Levels stand side by side, evenly spaced. `label` says what was evaluated.
    """
    import matplotlib
    from matplotlib.figure import Figure

    columns = -(-len(scan.layers) // 20)  # of the legend, as wide as the names are long
    width = columns * (0.6 + 0.075 * max(map(len, ["no layer pruned", *scan.layers])))
    figure = Figure(figsize=(6 + width, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(scan.dense, color="0.5", linewidth=0.9, linestyle="--", label="no layer pruned")
    # From dark to light by depth; the lightest yellow would be lost on white.
    colors = matplotlib.colormaps["viridis"](torch.linspace(0, 0.9, max(len(scan.layers), 2), device="cpu").numpy())
    for at, (layer, values) in enumerate(scan.layers.items()):
        axes.plot(values, label=layer, color=colors[at], marker="osD^v"[at % 5], markersize=4, linewidth=1.3)
    _label_levels(axes, scan.levels)
    axes.set_xlabel("pruned weights of the layer")
    axes.set_ylabel(label)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(frameon=False, loc="outside right upper", fontsize="small", ncols=columns)
    return figure


def write(figure: "Figure", path: FilePath) -> None:
    """Write a figure as PNG; the file is there whole or not at all."""
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=160)


def _draw_marks(axes: "Axes", method: Marks, x: Sequence[float], scale: float, linestyle: str, *, small: bool) -> None:
    """Draw one method: a mark at each mean, and its interval as a bar."""
    mean, low, high = ([scale * value for value in each] for each in (method.mean, method.low, method.high))
    axes.errorbar(
        x,
        mean,
        yerr=[_gaps(mean, low), _gaps(high, mean)],
        label=method.label,
        color=method.color,
        marker=method.marker,
        linestyle=linestyle,
        linewidth=1.2,
        markersize=5 if small else 7,
        markeredgewidth=1.6,
        elinewidth=1,
        capsize=2 if small else 3,
    )


def _label_levels(axes: "Axes", levels: Sequence[float]) -> None:
    """Put the levels on the x axis side by side, evenly spaced."""
    axes.set_xticks(range(len(levels)), [f"{100 * level:g} %" for level in levels])


def _scale_points(axes: "Axes", unit: float) -> None:
    """Make y linear within a unit of zero and logarithmic beyond, with ticks in plain numbers."""
    axes.set_yscale("symlog", linthresh=unit, linscale=1)
    low, high = axes.get_ylim()
    steps = [unit * step for step in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)]
    ticks = [tick for tick in sorted({0, *steps, *(-step for step in steps)}) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _gaps(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    return [high - low for high, low in zip(upper, lower, strict=True)]
