"""Tables from records alone: what does not hold, what was published beside ours, and all with our counts."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.refitting.comparing import HALF, HEAD_DENSE, LEVELS, OURS, PUBLISHED, TWO_FOUR, Compared, bar, stars
from benchmarks.refitting.networks import NETWORKS
from prunewald.statistics import Difference
from prunewald.util.tables import text_table

NAMES = {
    "published sparsegpt": "SparseGPT as published",
    "published wanda": "Wanda as published",
    "sparsegpt": "SparseGPT",
    "abs": "|w|",
    "moment": "second moment (default)",
    "wanda": "Wanda's criterion",
    "wald": "Wald, full Gram",
    OURS: "ours",
    HEAD_DENSE: "ours, last layer dense",
}
CRITERIA = ("abs", "moment", "wanda", "wald", "sparsegpt")


def bar_text(found: Compared) -> str:
    """What does not hold, first; then how much does."""
    verdicts = bar(found)
    head = ("network", "level", "against", "ours loses", "it loses", "ours - it [95 %]")
    failed = [one for one in verdicts if not one.holds]
    rows = [
        (one.network, shown(one.level), one.what, f"{one.ours:.2f}", f"{one.other:.2f}", str(one.difference))
        for one in failed
    ]
    what = list(dict.fromkeys(one.what for one in verdicts))
    counts = [(each, [one for one in verdicts if one.what == each]) for each in what]
    lines = [f"  {each}: {sum(one.holds for one in own)} of {len(own)}" for each, own in counts]
    said = text_table(head, rows, left=(0, 1, 2)) if rows else "  nothing"
    lower = [one for one in verdicts if one.holds and one.what != HALF and one.difference.mean < 0]
    near = [f"  {o.network} {shown(o.level)}, {o.what}: {o.difference}" for o in lower] or ["  none"]
    parts = [
        *("What does not hold, in points of accuracy:", "", said, ""),
        *("What holds:", "", *lines, ""),
        *("Of these lower on average, but within the 95 % interval:", "", *near),
    ]
    return "\n".join(parts)


def published_text(found: Compared) -> str:
    """Ours beside what was published."""
    head = (
        "network",
        "level",
        "way",
        "n",
        "kept",
        "change [95 %]",
        "median",
        "worst",
        "seconds",
        "ours - better [95 %]",
    )
    blocks: list[tuple[str, str, list[str]]] = []
    for network, level in _cells(found):
        ways = [way for way in (*PUBLISHED, OURS, HEAD_DENSE) if found.has(network, level, way)]
        if found.better(network, level) is not None:
            blocks.append((network, level, ways))
    against = [found.difference(n, OURS, found.better(n, level) or "", level) for n, level, _ in blocks]
    rows: list[list[str]] = []
    gaps: list[int] = []
    for (network, level, ways), difference, star in zip(blocks, against, stars(against), strict=True):
        gaps.append(len(rows))
        for way in ways:
            last = f"{difference}{star}" if way == OURS else ""
            rows.append([network, shown(level), NAMES[way], *_numbers(found, network, way, level), last])
    return text_table(head, rows, left=(0, 1, 2, 9), gaps=gaps[1:])


def counts_text(found: Compared) -> str:
    """Every criterion with our counts, pruned and refitted, and by how much ours is above each."""
    head = (
        "network",
        "level",
        "mask by",
        "n",
        "pruned",
        "refitted [95 %]",
        "median",
        "worst",
        "ours - it, both refitted",
    )
    cells = [(n, v, c) for n, v in _cells(found) for c in CRITERIA if found.has(n, v, c, f"{c}+refit")]
    pairs = [(n, v, c) for n, v, c in cells if c != "moment" and found.has(n, v, OURS, f"{c}+refit")]
    against = [found.difference(n, OURS, f"{c}+refit", v) for n, v, c in pairs]
    last = {pair: f"{one}{star}" for pair, one, star in zip(pairs, against, stars(against), strict=True)}
    rows: list[list[str]] = []
    gaps: list[int] = []
    block = ("", "")
    for network, level, criterion in cells:
        if (network, level) != block:
            gaps.append(len(rows))
            block = (network, level)
        before = found.change(network, criterion, level).difference.mean
        n, _, *numbers, _ = _numbers(found, network, f"{criterion}+refit", level)
        own = last.get((network, level, criterion), "")
        rows.append([network, shown(level), NAMES[criterion], n, f"{before:+.2f}", *numbers, own])
    return text_table(head, rows, left=(0, 1, 2, 8), gaps=gaps[1:])


def choosing_text(found: Compared) -> str:
    """Whether another mask is better than the second moment's, when both are refitted: a line a criterion."""
    head = ("mask by", "cells", "better *", "worse *", "median difference", "least", "greatest")
    rows = []
    for criterion in (c for c in CRITERIA if c != "moment"):
        way = f"{criterion}+refit"
        cells = [(n, v) for n, v in _cells(found) if found.has(n, v, OURS, way)]
        if cells:
            own = [found.difference(n, way, OURS, v) for n, v in cells]
            rows.append([NAMES[criterion], str(len(own)), *_won(own), *_range([one.mean for one in own])])
    return text_table(head, rows)


def _won(differences: Sequence[Difference]) -> tuple[str, str]:
    """How many are above and below zero, adjusted for their number."""
    marked = [one.mean for one, star in zip(differences, stars(differences), strict=True) if star]
    return str(sum(mean > 0 for mean in marked)), str(sum(mean < 0 for mean in marked))


def _range(means: Sequence[float]) -> tuple[str, str, str]:
    return f"{statistics.median(means):+.2f}", f"{min(means):+.2f}", f"{max(means):+.2f}"


def examples_text(found: Compared) -> str:
    """How many calibration examples, and an epoch of training instead."""
    ways = {"moment+refit@128": "128", OURS: "1,024", "moment+refit@8192": "8,192 (cnn: all 5,400)"}
    ways |= {"moment+epoch": "one epoch of training"}
    head = ("network", "level", "examples", "n", "kept", "change [95 %]", "median", "worst", "seconds")
    rows: list[list[str]] = []
    gaps: list[int] = []
    for network, level in _cells(found):
        known = [way for way in ways if found.has(network, level, way)]
        if len(known) > 1:
            gaps.append(len(rows))
            rows += [[network, shown(level), ways[way], *_numbers(found, network, way, level)] for way in known]
    return text_table(head, rows, left=(0, 1, 2), gaps=gaps[1:])


def reconstruction_text(found: Sequence[dict[str, Any]]) -> str:
    """By network, level and layer, what is not reconstructed of the dense outputs, in percent, means over networks."""
    cells: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for one in found:
        for layer, errors in one["layers"].items():
            cells.setdefault((one["network"], one["level"], layer), []).append(errors)
    rows = []
    for (network, level, layer), errors in sorted(cells.items(), key=lambda cell: _place(*cell[0][:2])):
        own, other = ([100 * each[way] for each in errors] for way in ("refit", "sparsegpt"))
        better = f"{sum(a < b for a, b in zip(own, other, strict=True))} of {len(own)}"
        means = (f"{statistics.fmean(each):.3f}" for each in (other, own))
        ratio = statistics.median(a / b for a, b in zip(own, other, strict=True))
        rows.append([network, shown(level), layer, *means, f"{ratio:.3f}", better])
    head = ("network", "level", "layer", "SparseGPT's update", "our refit", "ratio (median)", "ours lower")
    return text_table(head, rows, left=(0, 1, 2))


def dense_text(found: Compared) -> str:
    """The dense networks."""
    rows = []
    for network in found.networks():
        own = list(found.found.get((network, "dense", "0"), {}).values())
        accuracy, bits = [r.accuracy for r in own], statistics.fmean(r.bits for r in own)
        ends = f"{min(accuracy):.2f} to {max(accuracy):.2f}"
        seconds = f"{statistics.median(r.seconds for r in own):.0f}"
        title = NETWORKS[network].title
        rows.append([network, title, str(len(own)), f"{statistics.fmean(accuracy):.2f}", ends, f"{bits:.3f}", seconds])
    return text_table(("name", "network", "n", "accuracy", "range", "bits", "seconds"), rows, left=(0, 1))


def excerpt_text(found: Compared) -> str:
    """For the docs: what SparseGPT, Wanda and ours lose at three levels, in Markdown."""
    levels = ("0.8", "0.95", TWO_FOUR)
    rows = ["| points lost: SparseGPT / Wanda / **ours** | dense | " + " | ".join(map(shown, levels)) + " |"]
    rows.append("|---" * (2 + len(levels)) + "|")
    for network in found.networks():
        own = found.found[network, "dense", "0"].values()
        dense = f"{statistics.fmean(record.accuracy for record in own):.1f}"
        cells = [_lost(found, network, level) for level in levels]
        rows.append(f"| {NETWORKS[network].title} | {dense} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _lost(found: Compared, network: str, level: str) -> str:
    """Points lost by the published two and by ours, which at 2:4 leaves the last layer dense as they do."""
    ours = HEAD_DENSE if level == TWO_FOUR and found.has(network, level, HEAD_DENSE) else OURS
    if not found.has(network, level, *PUBLISHED, ours):
        return ""
    lost = [f"{0 - found.change(network, way, level).difference.mean:z.1f}" for way in (*PUBLISHED, ours)]
    return f"{lost[0]} / {lost[1]} / **{lost[2]}**"


def _numbers(found: Compared, network: str, way: str, level: str) -> list[str]:
    own = found.change(network, way, level)
    spread = (f"{own.median:+.2f}", f"{own.worst:+.2f}", f"{own.seconds:.1f}")
    return [str(own.difference.n), f"{own.kept:.2%}", str(own.difference), *spread]


def _cells(found: Compared) -> list[tuple[str, str]]:
    """Networks and levels in order."""
    known = {(network, level) for network, _, level in found.found if level != "0"}
    return sorted(known, key=lambda cell: _place(*cell))


def _place(network: str, level: str) -> tuple[int, int]:
    return list(NETWORKS).index(network), LEVELS.index(level)


def shown(level: str) -> str:
    """A level as it is written."""
    return level if level == TWO_FOUR else f"{100 * float(level):g} %"
