"""From scores to masks: counts for each slice, limits, and what whole groups make of them."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.core.allocation import Global, Layer, Row
from prunewald.core.ranking import KnownScores, Ranked
from prunewald.pruning import selecting
from prunewald.pruning.plan import Plan, Request
from prunewald.pruning.selecting import keep_counts, select

# Two slices whose scores are their weights, in ascending order.
WEIGHTS = {"a": torch.arange(1.0, 13.0).view(3, 4), "b": torch.arange(101.0, 109.0).view(2, 4)}
ALIVE = {name: torch.ones_like(w, dtype=torch.bool) for name, w in WEIGHTS.items()}


def scores() -> KnownScores:
    return KnownScores({name: Ranked(w, w) for name, w in WEIGHTS.items()})


def plan(sparsity: Any = None, *, scope: Any = None, pattern: Any = None, rising: bool = False, **asked: Any) -> Plan:
    request = Request(sparsity, rising=rising, **asked)
    tests = "alpha" in asked or "fdr" in asked
    chosen = scope or Layer(), pattern or pw.Element()
    return Plan(request, sparsity, asked.get("threshold"), pw.Magnitude(), None, *chosen, tests, ())


def kept(masks: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: WEIGHTS[name][mask].tolist() for name, mask in masks.items()}


@pytest.mark.parametrize(
    ("scope", "shares", "expected"),
    [
        (Layer(), 0.5, {"a": 6, "b": 4}),
        (Global(), 0.5, {"a": 2, "b": 8}),
        (Layer(), {"b": 0.75}, {"b": 2}),
        (Global(), {"a": 0.5, "b": 0.75}, {"a": 6, "b": 2}),  # each by itself, since each has a share of its own
    ],
)
def test_counts_of_one_share_or_of_one_for_each(scope, shares, expected):
    assert keep_counts(scope, scores(), shares) == expected


def test_the_best_of_each_slice_stay():
    masks, rows, notes = select(plan(0.75), scores(), ALIVE, None)
    assert kept(masks) == {"a": [10, 11, 12], "b": [107, 108]}
    assert [(row.name, row.kept, row.threshold) for row in rows] == [("a", 3, 10), ("b", 2, 107)]
    assert notes == []


def test_the_best_of_each_row_stay():
    masks, _, _ = select(plan(0.5, scope=Row()), scores(), ALIVE, None)
    assert kept(masks) == {"a": [3, 4, 7, 8, 11, 12], "b": [103, 104, 107, 108]}


def test_what_was_not_asked_for_stays_as_it_is():
    alive = ALIVE | {"b": WEIGHTS["b"] > 104}
    masks, rows, _ = select(plan({"a": 0.5}), scores(), alive, None)
    assert masks["b"] is alive["b"]
    assert rows[1].threshold is None
    assert kept(masks)["a"] == [7, 8, 9, 10, 11, 12]


def test_all_from_a_threshold_on_stay_if_they_were_alive():
    alive = ALIVE | {"a": WEIGHTS["a"] != 12}
    masks, _, _ = select(plan(threshold=11), scores(), alive, None)
    assert kept(masks) == {"a": [11], "b": WEIGHTS["b"].flatten().tolist()}


def test_a_level_is_the_quantile_of_its_distribution():
    scaled = KnownScores({name: Ranked(w / 10, w) for name, w in WEIGHTS.items()})
    normal, _, _ = select(plan(alpha=0.5), scaled, ALIVE, None)  # |z| of at least 0.674
    wide, _, _ = select(plan(alpha=0.5), scaled, ALIVE, 1.0)  # |t| of at least 1
    assert kept(normal)["a"] == [7, 8, 9, 10, 11, 12]
    assert kept(wide)["a"] == [10, 11, 12]


def test_pruning_brings_nothing_back_unless_it_only_rises():
    alive = ALIVE | {"a": WEIGHTS["a"] > 9}
    with pytest.raises(ValueError, match="sparsity 0.5 .*'a'.*Ask for more"):
        select(plan(0.5), scores(), alive, None)
    masks, _, _ = select(plan(0.5, rising=True), scores(), alive, None)
    assert kept(masks) == {"a": [10, 11, 12], "b": [105, 106, 107, 108]}


def test_a_row_that_has_lost_more_keeps_what_it_has():
    alive = ALIVE | {"a": torch.tensor([[False, False, False, True], [True] * 4, [True] * 4])}
    masks, _, _ = select(plan(0.5, scope=Row(), rising=True), scores(), alive, None)
    assert kept(masks)["a"] == [4, 7, 8, 11, 12]


def test_whole_groups_are_noted_where_they_miss_the_count():
    masks, rows, notes = select(plan(0.55, pattern=pw.Block(1, 4)), scores(), ALIVE, None)
    assert kept(masks) == {"a": [9, 10, 11, 12], "b": [105, 106, 107, 108]}
    assert all(row.threshold is None for row in rows)
    (note,) = notes
    for words in ("Block(", " 8 ", " 9:"):
        assert words in note


def test_a_block_that_stays_brings_nothing_back():
    alive = ALIVE | {"a": WEIGHTS["a"] != 12}
    masks, _, _ = select(plan({"a": 2 / 3}, pattern=pw.Block(1, 4)), scores(), alive, None)
    assert kept(masks)["a"] == [9, 10, 11]


# ---- what rounding makes of a sparsity -----------------------------------------------------------------------------


def small_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(3, 3) for _ in range(50)])


def unlike(report) -> list[str]:
    return [note for note in report.notes if "rounded" in note]


def test_a_sparsity_that_small_tensors_cannot_reach_is_noted():
    report = pw.Pruner(small_layers(), criterion="magnitude").prune(0.95)
    (note,) = unlike(report)
    assert re.search(r"88.89%.*not 95.00%.*scope='global'", note)


def test_following_that_note_reaches_it():
    pruner = pw.Pruner(small_layers(), criterion="magnitude", scope="global")
    with pytest.warns(UserWarning, match="lost all"):
        report = pruner.prune(0.95)
    assert report.sparsity == pytest.approx(0.95, abs=0.002)
    assert not unlike(report)


def test_a_sparsity_that_is_reached_is_not_noted():
    assert not unlike(pw.Pruner(nn.Linear(30, 30), criterion="magnitude").prune(0.95))
    assert not unlike(pw.Pruner(small_layers(), criterion="magnitude").prune(threshold=0.3))


def test_rows_and_levels_by_layer_are_noted_too():
    report = pw.Pruner(nn.Linear(3, 8), criterion="magnitude", scope="row").prune(0.5)
    assert re.search("66.67%.*not 50.00%", *unlike(report))
    report = pw.Pruner(small_layers(), criterion="magnitude").prune({"0": 0.95, "1": 0.5})
    assert re.search("66.67%.*not 72.50%", *unlike(report))


def test_the_overlap_by_rows_is_that_of_evenly_spread_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlap() -> tuple[float, pw.Pruner]:
        torch.manual_seed(0)
        pruner = pw.Pruner(nn.Linear(40, 400), criterion="wanda", scope="row")
        pruner.observe([torch.randn(50, 40).mul_(torch.arange(40.0))])
        return pruner.prune(0.5).rows[0].overlap, pruner

    whole, pruner = overlap()
    monkeypatch.setattr(selecting, "_ROWS_OF", 4000)
    some, again = overlap()
    assert torch.equal(again.masks["weight"], pruner.masks["weight"])
    torch.manual_seed(0)
    size = nn.Linear(40, 400).weight.abs()[::4].detach()
    by_size = size > size.kthvalue(20, dim=1, keepdim=True).values
    mask = pruner.masks["weight"][::4]
    assert some == int((by_size & mask).sum()) / int(mask.sum()) != whole
    assert some == pytest.approx(whole, abs=0.05)
