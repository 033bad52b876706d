"""The contest's figure: accuracy change by criterion, a line and a colour each, the allocations told apart by mark."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from prunewald.lab.methods import Method, parse
from prunewald.lab.palette import look
from prunewald.lab.standing import Standing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = {"lamp": "o", "layer": "x", "erk": "s", "lamp-score": "v", "global": "^"}  # but for layer, as elsewhere


def draw(found: Sequence[Standing], title: str) -> Any:
    """One panel a level: how far above or below dense each criterion ends, with intervals and the worst network."""
    from matplotlib.figure import Figure

    levels = sorted({one.level for one in found})
    names = _criteria(found)
    figure = Figure(figsize=(max(8.0, 2.6 + 3.2 * len(levels)), 1.6 + 0.32 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(levels), sharey=True, squeeze=False)[0]
    for axes, level in zip(panels, levels, strict=True):
        for one in (one for one in found if one.level == level):
            _mark(axes, one, names.index(_criterion(one.row)))
        _finish(axes, level)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)  # the first row on top
    scopes = [scope for scope in _MARKS if any(parse(one.row).scope == scope for one in found)]
    handles = [_handle(scope) for scope in scopes]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(scopes), frameon=False, title="counts by")
    said = [*title.split("\n"), "change of test accuracy against dense, with 95 % intervals; |: the worst network"]
    width = int(13 * figure.get_figwidth())
    figure.suptitle("\n".join(fill(line, width) for line in said), fontsize="small")
    return figure


def _criterion(row: str) -> str:
    own = parse(row)
    return Method(own.sigma, own.lam, own.marks).label


def _criteria(found: Sequence[Standing]) -> list[str]:
    """The criteria, first what ends highest at any level with any allocation."""
    changes: dict[str, list[float]] = {}
    for one in found:
        changes.setdefault(_criterion(one.row), []).append(one.retrained - one.dense)
    return sorted(changes, key=lambda name: -max(changes[name]))


def _mark(axes: "Axes", one: Standing, place: int) -> None:
    scope, (color, _) = parse(one.row).scope, look(one.row)
    y = place + 0.14 * (list(_MARKS).index(scope) - 1)
    mean = one.retrained - one.dense
    ends = [[0.0], [0.0]] if one.change is None else [[mean - one.change.low], [one.change.high - mean]]
    axes.errorbar([mean], [y], xerr=ends, color=color, marker=_MARKS[scope], markersize=4, linewidth=1)
    axes.plot([one.worst], [y], "|", color=color, alpha=0.5, markersize=5)


def _finish(axes: "Axes", level: float) -> None:
    axes.axvline(0, color="0.5", linewidth=0.9)
    axes.set_xscale("symlog", linthresh=1, linscale=1)
    low, high = axes.get_xlim()
    ticks = [tick for tick in (-50, -20, -5, -1, 0, 1, 5) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(f"{100 * level:g} % pruned", fontsize="small")
    axes.set_xlabel("points")


def _handle(scope: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="0.3", marker=_MARKS[scope], linestyle="none", label=scope)
