"""What a choice means in the figures of a report: threshold, dead share, likeness to magnitude, what was emptied."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.ranking import Ranked
from prunewald.pruning import describing
from prunewald.pruning.describing import scored_row, untouched_row
from prunewald.pruning.plan import Request, resolve
from tests.training import trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")


def plan_of(pruner):
    return resolve(pruner._choices, Request(0.5), pruner.model, pruner.slices, pruner.targets(), {}, {})


def test_the_report_in_numbers():
    pruner = trained_pruner()
    with torch.no_grad():
        pruner.model[0].weight[0] = 0.0
    report = pruner.prune(0.9)
    for row in report.rows:
        mask = pruner.masks[row.name]
        assert row.shape == tuple(mask.shape)
        assert row.weights == mask.numel()
        assert row.kept == int(mask.sum())
        assert 0 <= row.overlap <= 1
        assert -1 <= row.correlation <= 1
        assert row.threshold > 0
    assert report.kept == sum(row.kept for row in report.rows)
    assert report.sparsity == pytest.approx(0.9, abs=0.01)


def test_overlap_and_correlation_with_magnitude_by_hand():
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    sigma = {"weight": torch.tensor([[0.1, 1.0, 1.0, 8.0]])}
    report = pw.Pruner(model, criterion=pw.Wald(), uncertainty=sigma).prune(0.5)
    (row,) = report.rows
    assert row.kept == 2
    assert row.threshold == 3.0
    assert row.overlap == 0.5  # Wald keeps 1 and 3, magnitude 3 and 4
    assert row.correlation == pytest.approx(-0.8)


def test_magnitude_agrees_with_itself():
    rows = trained_pruner(criterion="magnitude").prune(0.5).rows
    assert all(row.overlap == row.correlation == 1 and row.dead is None for row in rows)


@pytest.mark.parametrize(("alive", "share"), [(None, 0.5), (torch.tensor([True, True, True, False]), 2 / 3)])
def test_the_dead_are_counted_among_the_living(alive, share):
    dead = torch.tensor([True, True, False, False])
    ranked = Ranked(torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]), dead)
    keep = torch.tensor([False, True, True, False])
    row = scored_row(plan_of(pw.Pruner(wide(), criterion="magnitude")), "a", ranked, alive, keep, None)
    assert row.dead == pytest.approx(share)
    assert row.threshold == 0, "a dead weight's score is a place in the order, and no number"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_threshold_is_the_lowest_score_kept_wherever_it_is(dtype):
    torch.manual_seed(0)
    score = torch.randn(200_000, dtype=dtype)
    score[:3] = torch.tensor([-torch.inf, torch.finfo(dtype).min, torch.finfo(dtype).max])
    for share in (0.1, 0.9):
        keep = torch.rand(200_000) < share
        keep[:3] = torch.tensor([False, False, True])
        assert describing._threshold(Ranked(score, torch.ones_like(score)), keep) == float(score[keep].min())


def test_what_was_not_touched_has_no_figures_of_scores():
    row = untouched_row("a", torch.eye(3, dtype=torch.bool))
    assert (row.kept, row.weights, row.threshold, row.dead, row.overlap) == (3, 9, None, None, 1.0)
    assert row.correlation != row.correlation


@pytest.mark.filterwarnings("ignore:.*lost all weights")
def test_what_was_emptied_is_noted():
    pruner = trained_pruner(criterion="magnitude", scope="global")
    with torch.no_grad():
        pruner.model[4].weight.mul_(1e-6)
    report = pruner.prune(0.5)
    assert report.emptied == ["4.weight"]
    assert any("emptied: 4.weight" in note for note in report.notes)


def test_the_parts_are_named_as_briefly_as_can_be():
    pruner = trained_pruner(criterion=pw.Wald(dead="formula"), scope="global", pattern=pw.Block(1, 2))
    report = pruner.prune(0.5)
    assert report.criterion == "Wald(dead='formula')"
    assert (report.uncertainty, report.scope, report.pattern) == ("SecondMoment()", "global", "Block(rows=1, cols=2)")
