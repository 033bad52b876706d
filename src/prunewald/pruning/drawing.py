"""The pictures of a page without a browser: matplotlib axes, in the same colours. Matplotlib is imported when used."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prunewald.core.ranking import Count
from prunewald.pruning.report import Report
from prunewald.pruning.sight import Sight
from prunewald.util import colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 20_000  # points that are drawn of a layer, evenly spaced ones of a larger
_USUAL = 0.9  # the sparsity that is drawn where none is named and nothing is pruned


def kept_bars(report: Report, axes: "Axes | None" = None) -> "Axes":
    """Draw the share of its weights that each layer keeps, first to last, and that of all as a dashed line."""
    rows = list(report.rows)
    axes = axes or _new_axes(6.4, 0.8 + 0.3 * len(rows))
    shares = [row.kept / row.weights if row.weights else 0.0 for row in rows]
    axes.barh(range(len(rows)), shares, color=colours.BAR, height=0.7)
    for at, row in enumerate(rows):
        axes.annotate(f" {row.kept:,}", (shares[at], at), va="center", fontsize="small", color=colours.MUTED)
    axes.axvline(1 - report.sparsity, color=colours.INK, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max([*shares, 1 - report.sparsity]) or 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    verb = "would keep" if report.dry_run else "keeps"
    axes.set_xlabel(f"share of its weights that each layer {verb}; dashed: of all")
    axes.set_title(f"{report.criterion}, {report.sparsity:.1%} pruned", fontsize="medium", loc="left")
    _calm(axes, "x")
    return axes


def plane(sight: Sight, name: str, sparsity: float | None, axes: "Axes | None" = None) -> "Axes":
    """Draw |w| against sigma of one layer, and which weights stay at a sparsity of all: by the score, and by |w|."""
    stats, counts = sight.scores.stats(name), _counts(sight, name, sparsity)
    if stats.sigma is None:
        raise ValueError(
            f"{name!r} has no sigma to draw |w| against: give the Pruner an uncertainty, such as SecondMoment()"
        )
    axes = axes or _new_axes(6.4, 4.8)
    alive = torch.ones_like(stats.weight, dtype=torch.bool) if stats.alive is None else stats.alive
    drawn = alive & (stats.weight != 0) & (stats.sigma > 0) & stats.sigma.isfinite()
    kept = alive if counts is None else sight.keep(name, counts)
    plain = alive if counts is None else sight.keep(name, counts, by_magnitude=True)
    source = "" if sight.plan.uncertainty is None else repr(sight.plan.uncertainty)
    chosen = colours.METHODS[colours.method_of(source) or "moment"]
    states: list[tuple[str, Tensor, str]] = [
        ("pruned by both", ~kept & ~plain, colours.FAINT),
        ("kept by both", kept & plain, colours.BOTH),
        ("kept by |w| alone", plain & ~kept, colours.INK),
        ("kept by tau alone", kept & ~plain, chosen),
    ]
    for label, state, color in states:
        _scatter(axes, stats.weight, stats.sigma, drawn & state, label, color)
    axes.set(xscale="log", yscale="log", xlabel="|w|", ylabel="sigma")
    axes.set_title(_title(name, sparsity, kept), fontsize="medium", loc="left")
    axes.legend(frameon=False, fontsize="small")
    _calm(axes, "both")
    return axes


def _counts(sight: Sight, name: str, sparsity: float | None) -> Count | None:
    """How many weights of the layer stay; None where it is drawn as it is now."""
    if sparsity is None:
        pruned = any(sight.scores.alive(one) is not None for one in sight.scores)
        sparsity = None if pruned or not sight.plan.pattern.single else _USUAL
    if sparsity is None:
        return None
    found = sight.counts(sparsity)
    if found is None:
        raise ValueError(f"sparsity={sparsity!r} would bring weights back: more is pruned already; give a higher one")
    return found[name]


def _title(name: str, sparsity: float | None, kept: Tensor) -> str:
    at = "" if sparsity is None else f", {sparsity:.1%} of all pruned"
    return f"{name}: {int(torch.count_nonzero(kept)):,} of {kept.numel():,} stay{at}"


def _scatter(axes: "Axes", weight: Tensor, sigma: Tensor, chosen: Tensor, label: str, color: str) -> None:
    size, spread = weight[chosen].abs().cpu(), sigma[chosen].cpu()
    step = -(-len(size) // _MOST) or 1
    if len(size):
        axes.plot(
            size[::step].numpy(), spread[::step].numpy(), ".", color=color, markersize=3, label=label, rasterized=True
        )


def _new_axes(width: float, height: float) -> "Axes":
    """Axes of a figure that a notebook shows by itself."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install 'prunewald[demo]'") from error
    found: Any = pyplot.subplots(figsize=(width, height), layout="constrained")[1]
    return found  # type: ignore[no-any-return]


def _calm(axes: "Axes", grid: Any) -> None:
    axes.grid(axis=grid, color=colours.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
