import random
import re
import statistics
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats as reference

from prunewald.figures import write
from prunewald.lab import summary
from prunewald.lab.methods import parse
from prunewald.lab.records import Record
from prunewald.lab.settings import PAPER
from prunewald.statistics import holm
from prunewald.util.colours import METHODS

ONE = Record(0, "abs", 0.5, 0.8, 0.5, 0.7, 0.7, 0.9, 5.0, 1.1, 0.6, 0.1, {})
ROWS = ("dense", "abs", "pseudo:1e-4:formula", "bootstrap:0.1:formula", "moment:1", "moment:1:permuted", "random")


def some(rows: tuple[str, ...] = ROWS, levels: tuple[float, ...] = (0.5, 0.9, 0.95), seeds: int = 5) -> list[Record]:
    """Records of chance, fewer of the bootstrap's, in no order."""
    chance = random.Random(7)
    found = []
    for row in rows:
        for level in (0.0,) if row == "dense" else levels:
            for seed in range(3 if row.startswith("bootstrap") else seeds):
                dense = 0.8 + 0.01 * seed
                pruned, retrained, validation = (dense - level * chance.random() / 5 for _ in range(3))
                found.append(replace(ONE, seed=seed, row=row, level=level, dense=dense, pruned=pruned))
                found[-1] = replace(found[-1], retrained=retrained, validation=validation, overlap=chance.random())
    chance.shuffle(found)
    return found


def test_lines_are_scipys_numbers() -> None:
    records = some()
    found = {(line.row, line.level): line for line in summary.lines(records)}
    values = {(r.row, r.level, r.seed): r for r in records}
    for row, count in (("moment:1", 5), ("bootstrap:0.1:formula", 3)):
        for level in (0.5, 0.9, 0.95):
            line = found[row, level]
            own, abs_ = ([values[name, level, s] for s in range(count)] for name in (row, "abs"))
            assert line.n == count
            assert line.retrained == pytest.approx(100 * statistics.fmean(r.retrained for r in own))
            assert line.dense == pytest.approx(100 * statistics.fmean(r.dense for r in own))
            test = reference.ttest_rel([100 * r.retrained for r in own], [100 * r.retrained for r in abs_])
            interval = test.confidence_interval(0.95)
            assert line.gain is not None
            assert (line.gain.low, line.gain.high, line.gain.p) == pytest.approx((*interval, test.pvalue))
            at_once = reference.ttest_rel([r.pruned for r in own], [r.pruned for r in abs_])
            assert line.pruned_gain is not None
            assert line.pruned_gain.p == pytest.approx(at_once.pvalue)
            drop = reference.ttest_rel([r.retrained for r in own], [r.dense for r in own])
            assert line.drop is not None
            assert line.drop.p == pytest.approx(drop.pvalue)
            gaps = [100 * (r.retrained - a.retrained) for r, a in zip(own, abs_, strict=False)]
            assert line.gain_spread is not None
            assert astuple(line.gain_spread) == pytest.approx((statistics.median(gaps), min(gaps)))
            drops = [100 * (r.retrained - r.dense) for r in own]
            assert astuple(line.drop_spread) == pytest.approx((statistics.median(drops), min(drops)))
            order = [values["random", level, s].retrained for s in range(count)]
            assert line.random_gain is not None
            assert line.random_gain.p == pytest.approx(reference.ttest_rel([r.retrained for r in own], order).pvalue)
    assert found["abs", 0.5].random_gain is not None
    assert found["random", 0.5].random_gain is None
    for row, level in (("abs", 0.5), ("dense", 0.0)):
        assert found[row, level].gain is None
        assert found[row, level].p_holm is None


def test_holms_correction_is_over_all_tests_of_the_table() -> None:
    found = [line for line in summary.lines(some()) if line.gain is not None]
    assert len(found) == 5 * 3
    p = [line.gain.p for line in found if line.gain is not None]
    assert [line.p_holm for line in found] == holm(p)
    assert min(line.p_holm or 0 for line in found) == pytest.approx(min(1, 15 * min(p)))
    assert "adjusted for all 15 tests of this table" in summary.table(found)


def test_order_of_rows_and_levels() -> None:
    found = summary.lines(some())
    assert [line.level for line in found] == sorted(line.level for line in found)
    assert [line.row for line in found][:7] == [*ROWS]
    assert [line.row for line in found][7:13] == [*ROWS[1:]]


def test_wins_are_counted_as_the_paper_does() -> None:
    better = [replace(ONE, row="moment:1", level=level, seed=s) for level in (0.5, 0.9, 0.95) for s in (0, 1)]
    gains = {0.5: 0.1, 0.9: 0.0, 0.95: -0.1}
    better = [replace(record, retrained=0.7 + gains[record.level]) for record in better]
    plain = [replace(ONE, level=level, seed=s) for level in gains for s in (0, 1)]
    found = summary.lines([*better, *plain])
    assert summary.wins(found) == {"moment:1": (1, 3)}
    assert summary.wins_text(found).split() == ["M&U", "second", "moment", "λ*=1", "1", "of", "3"]


def test_table_columns_never_run_together() -> None:
    text = summary.table(summary.lines(some()))
    head, rule, *lines = text.splitlines()
    assert set(rule) == {"-"}
    assert len(re.split(r"  +", head.strip())) == 18
    starts = [match.start() for match in re.finditer(r"(?<=  )\S", head)]
    rows = [line for line in lines if "x" in line and "M&U" in line]
    assert len(rows) == 12
    label = head.index("row")
    widest = max(len(re.split(r"  +", row[label:])[0]) for row in rows)
    assert all(row[label + widest : label + widest + 2] == "  " for row in rows)
    assert len(starts) == 17
    row = next(row for row in rows if "second moment λ*=1 " in row and row.startswith("        "))
    assert len(re.split(r"  +", row.strip())) == 17  # all but the level
    assert "n differs" in text
    assert "n differs" not in summary.table(summary.lines(some(("dense", "abs", "moment:1"))))


def test_short_table_has_the_accuracies_alone() -> None:
    records = some(("dense", "abs", "pseudo:0.01", "moment:1"))
    records = [replace(r, retrained=r.dense + 0.001 * r.seed) if r.row == "moment:1" else r for r in records]
    found = summary.lines(records)
    text = summary.short_table(found)
    lines = text.splitlines()
    assert all(len(line) <= 110 for line in lines)
    assert "mean of 5 networks" in lines[0]
    (control,) = (line for line in found if line.row == "dense")
    assert lines[1] == f"Dense {control.dense:.2f}; after as many extra epochs {control.retrained:.2f}: {control.drop}"
    head = next(line for line in lines if line.startswith("pruned"))
    assert re.split(r"  +", head) == ["pruned", "criterion", "at once", "over ABS", "retrained", "over ABS"]
    assert [line.strip()[:4] for line in lines if "  ABS  " in line] == ["50 %", "90 %", "95 %"]
    for line in found:
        if line.row == "moment:1":
            star = " *" if line.p_holm is not None and line.p_holm < 0.05 else ""
            ours = f"{line.pruned:.2f}  {line.pruned_gain}"
            assert any(ours in shown and shown.endswith(f"{line.retrained:.2f}  {line.gain}{star}") for shown in lines)
    assert text.count(" *\n") == sum(line.p_holm is not None and line.p_holm < 0.05 for line in found) > 0


def test_one_network_has_no_interval() -> None:
    found = summary.lines(some(seeds=1))
    assert {line.gain for line in found if not line.row.startswith("bootstrap")} == {None}
    assert summary.wins(found) == {}
    text = summary.table(found)
    assert "without an interval" in text
    assert "without an interval" not in summary.table(summary.lines(some(seeds=2)))
    absolute = {line.level: line for line in found if line.row == "abs"}
    for line in found:
        if line.row == "moment:1":
            at_once, after = line.pruned - absolute[line.level].pruned, line.retrained - absolute[line.level].retrained
            assert line.points == pytest.approx((at_once, after))
            words = next(words for each in text.splitlines() if f"{line.retrained:.2f}" in (words := each.split()))
            at = words.index(f"{line.retrained:.2f}")
            assert words[at - 1] == f"{at_once:+.2f}"
            assert f"{after:+.2f}" in words[at + 2 :]


def test_one_network_is_drawn_as_points_without_intervals() -> None:
    found = summary.lines(some(seeds=1))
    for axes, rows in zip(summary.figure(found, "one").axes, (("abs", "moment:1"), ("moment:1",)), strict=True):
        drawn = {bars.get_label(): bars for bars in axes.containers}
        for row in rows:
            own = [line for line in found if line.row == row]
            points = [each.retrained - each.dense if "abs" in rows else (each.points or (0, 0))[1] for each in own]
            line, _, (bars,) = drawn[f"{parse(row).label}, n = 1"]
            assert list(line.get_ydata()) == pytest.approx(points)
            assert all(low == high for (_, low), (_, high) in bars.get_segments())


def test_choice_is_by_validation_and_best_first() -> None:
    def row(text: str, level: float, *values: float) -> list[Record]:
        return [
            replace(ONE, row=text, level=level, seed=s, validation=v, retrained=1 - v) for s, v in enumerate(values)
        ]

    records = [*row("moment:1", 0.5, 0.7, 0.9), *row("moment:1", 0.9, 0.5), *row("moment:10", 0.5, 0.9)]
    records += [*row("moment:10", 0.9, 0.6, 0.6), *row("dense", 0.0, 1.0), *row("abs", 0.5, 0.1)]
    shown = summary.choice(records)
    assert [name for name, _ in shown] == ["moment:10", "moment:1", "abs"]
    assert [value for _, value in shown] == pytest.approx([75, 65, 10])  # each level counts alike


@pytest.mark.parametrize("experiment", list(PAPER))
def test_figure_has_every_row_but_those_upside_down(experiment: str, tmp_path: Path) -> None:
    paper = PAPER[experiment]
    records = some(("dense", *paper.rows), paper.levels)
    if paper.iterative:
        records += [replace(record, row="dense") for record in records if record.row == "abs"]
        records = [record for record in records if record.level]
    drawn = summary.figure(summary.lines(records), "a title\nthe paper: wins", lines=experiment == "imagenet100")
    axes = drawn.axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    labels = [label.partition(", n = ")[0] for label in labels]
    assert {"ABS", "random"} <= set(labels)
    assert not [label for label in labels if "permuted" in label or "inverted" in label]
    plain = [row for row in paper.rows if "ted" not in row]
    assert len(drawn.axes[1].containers) == len(plain) - 1  # over ABS
    assert len(labels) == len(plain) + 1
    assert ("dense, extra epochs" if paper.iterative else "not pruned, trained on") in labels
    handles = [handle[0] for handle in axes.containers[-len(plain) :]]
    colors = {label: handle.get_color() for label, handle in zip(labels[1:], handles, strict=True)}
    assert colors["ABS"] == METHODS["abs"]
    raw = {color for label, color in colors.items() if "pseudo" in label and "formula" in label}
    assert raw == {METHODS["pseudo:formula"]}
    assert {color for label, color in colors.items() if "second moment" in label} == {METHODS["moment"]}
    assert len({(h.get_color(), h.get_marker(), h.get_fillstyle()) for h in handles}) == len(plain)
    write(drawn, tmp_path / "figure.png")


def test_a_row_is_compared_with_abs_of_the_same_allocation() -> None:
    records = some(("dense", "abs", "moment:1", "abs@lamp", "moment:1@lamp", "moment:1@erk", "random"), levels=(0.9,))
    found = {line.row: line for line in summary.lines(records)}
    value = {(r.row, r.seed): 100 * r.retrained for r in records}

    def mean(row: str, other: str) -> float:
        return statistics.fmean(value[row, seed] - value[other, seed] for seed in range(5))

    for row, other in (
        ("moment:1", "abs"),
        ("moment:1@lamp", "abs@lamp"),
        ("abs@lamp", "abs"),
        ("moment:1@erk", "abs"),
    ):
        gain = found[row].gain
        assert gain is not None
        assert gain.mean == pytest.approx(mean(row, other))
    assert found["abs"].gain is None
    assert found["moment:1@lamp"].random_gain is None  # the random order of this table is of another allocation
    assert found["moment:1"].random_gain is not None
    text = summary.table(list(found.values()))
    assert "@: how many each layer keeps" in text
    assert "@: how many" not in summary.table([line for row, line in found.items() if "@" not in row])


def test_every_row_says_how_many_networks_it_has() -> None:
    labels = [text.get_text() for text in summary.figure(summary.lines(some()), "").axes[0].get_legend().get_texts()]
    assert "M&U second moment λ*=1, n = 5" in labels
    assert "M&U bootstrap λ*=0.1, formula, n = 3" in labels
    fewer = [record for record in some() if record.level != 0.9 or record.seed < 4]
    labels = [text.get_text() for text in summary.figure(summary.lines(fewer), "").axes[0].get_legend().get_texts()]
    assert "M&U second moment λ*=1, n = 4 to 5" in labels


def test_allocation_and_criterion_apart(tmp_path: Path) -> None:
    rows = ("dense", "abs", "moment:1", "abs@lamp", "moment:1@lamp", "random@lamp", "abs@erk", "pseudo:1@global")
    records = some(rows, levels=(0.9, 0.95))
    value = {(r.row, r.level, r.seed): 100 * r.retrained for r in records}
    dense = {r.seed: 100 * r.dense for r in records}
    drawn = summary.apart(summary.lines(records), "a title", note="of what")
    assert drawn is not None
    write(drawn, tmp_path / "apart.png")

    def shown(panel: int) -> dict[str, list[float]]:
        axes = drawn.axes[panel]
        labels = [text.get_text().partition(", n = ")[0] for text in axes.get_legend().get_texts()]
        return {label: list(one[0].get_ydata()) for label, one in zip(labels, axes.containers, strict=True)}

    def over(row: str, other: str) -> Any:
        each = [[value[row, level, s] - value[other, level, s] for s in range(5)] for level in (0.9, 0.95)]
        return pytest.approx([statistics.fmean(gaps) for gaps in each])

    drops = [statistics.fmean(value["abs", level, s] - dense[s] for s in range(5)) for level in (0.9, 0.95)]
    assert shown(0) == {"ABS": pytest.approx(drops)}
    assert shown(1) == {"ABS @erk": over("abs@erk", "abs"), "ABS @lamp": over("abs@lamp", "abs")}
    assert shown(2) == {  # the global one has no ABS of its own, so nothing tells its two effects apart
        "M&U second moment λ*=1": over("moment:1", "abs"),
        "M&U second moment λ*=1 @lamp": over("moment:1@lamp", "abs@lamp"),
        "random @lamp": over("random@lamp", "abs@lamp"),
    }
    assert summary.apart(summary.lines(some()), "") is None
    assert summary.apart(summary.lines(some(("dense", "abs@lamp", "moment:1@lamp"))), "") is None
