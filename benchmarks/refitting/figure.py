"""The figure: accuracy against sparsity with no training after pruning, a panel a network."""

from typing import TYPE_CHECKING, Any

from benchmarks.refitting.comparing import LEVELS, OURS, TWO_FOUR, Compared
from benchmarks.refitting.networks import NETWORKS
from benchmarks.refitting.tables import shown
from prunewald.lab.palette import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours are the library's; SparseGPT has none there. Without refitting a line is dashed.
_WAYS = {
    OURS: ("ours: second moment, refitted", look("moment:1")[0], "-", "o"),
    "moment": ("the same, not refitted", look("moment:1")[0], ":", "o"),
    "published sparsegpt": ("SparseGPT as published", "tab:blue", "-", "s"),
    "published wanda": ("Wanda as published", look("wanda")[0], "-", "p"),
}
_PANELS = 3  # in a row
_APART, _BESIDE = 0.2, 0.16  # where 2:4 stands, and its ways from each other


def draw(found: Compared) -> Any:
    """Mean accuracies with 95 % t intervals of the change against dense; 2:4 stands apart."""
    from matplotlib.figure import Figure

    names = found.networks()
    rows = -(-len(names) // _PANELS)
    figure = Figure(figsize=(11, 0.9 + 3.1 * rows), layout="constrained")
    panels = figure.subplots(rows, _PANELS, squeeze=False).flatten()
    for axes, network in zip(panels, names, strict=False):
        for way in reversed(_WAYS):
            _line(axes, found, network, way)
        _finish(axes, found, network)
    for axes in panels[len(names) :]:
        axes.axis("off")
    legend = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    known = [label for label, *_ in _WAYS.values() if label in legend]
    figure.legend([legend[label] for label in known], known, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Test accuracy with no training after pruning, 1,024 calibration examples", fontsize="medium")
    return figure


def _line(axes: "Axes", found: Compared, network: str, way: str) -> None:
    label, color, style, mark = _WAYS[way]
    levels = [level for level in LEVELS if found.has(network, level, way)]
    if not levels:
        return
    every = [found.change(network, way, level).difference for level in levels]
    dense = _dense(found, network)
    for apart in (False, True):
        own = [(LEVELS.index(v), d) for v, d in zip(levels, every, strict=True) if (v == TWO_FOUR) == apart]
        ends = [[d.mean - d.low for _, d in own], [d.high - d.mean for _, d in own]]
        means = [dense + d.mean for _, d in own]
        how: dict[str, Any] = {"color": color, "marker": mark, "markersize": 4, "linewidth": 1.4, "elinewidth": 0.6}
        places = [place + apart * (_APART + _BESIDE * list(_WAYS).index(way)) for place, _ in own]
        axes.errorbar(places, means, yerr=ends, linestyle=style, label=None if apart else label, **how)


def _dense(found: Compared, network: str) -> float:
    own = found.found[network, "dense", "0"]
    return sum(record.accuracy for record in own.values()) / len(own)


def _finish(axes: "Axes", found: Compared, network: str) -> None:
    dense = _dense(found, network)
    axes.axhline(dense, color="0.5", linewidth=0.9)
    width = _BESIDE * (len(_WAYS) - 1)
    places = [at + (level == TWO_FOUR) * (_APART + width / 2) for at, level in enumerate(LEVELS)]
    axes.set_xticks(places, [shown(level).removesuffix(" %") for level in LEVELS])
    axes.set_xlim(-0.3, places[-1] + width / 2 + 0.3)
    axes.axvline(len(LEVELS) - 2 + 0.75 * _APART + 0.5, color="0.8", linewidth=0.8)
    axes.set_xlabel("% pruned", fontsize="small")
    axes.set_ylim(0, min(100, 1.08 * dense))
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(f"{NETWORKS[network].title}\ndense {dense:.1f}", fontsize="small")
    axes.set_ylabel("next byte, %" if NETWORKS[network].text else "accuracy, %")
