"""How long a training is: a schedule that was told ends with it, and one that did not come to its end says so."""

import logging
import warnings

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.storage import inspect
from tests.pruning.helpers import adam, go
from tests.training import net, sgd

pytestmark = pytest.mark.usefixtures("one_thread")


def scheduled(schedule="cubic", **more) -> pw.Pruner:
    model = net()
    return pw.Pruner(model, sgd(model), criterion="magnitude", schedule=schedule, **more)


@pytest.mark.parametrize("steps", [3, 50, 300])
def test_a_short_name_ends_with_the_training(steps):
    pruner = scheduled(total_steps=steps)
    go(pruner, range(steps // 2))
    assert pruner.at_work
    go(pruner, range(steps // 2, steps))
    assert pruner.sparsity == pytest.approx(0.9, abs=0.01)
    assert not pruner.at_work
    assert len(pruner.history) >= min(steps, 20)
    assert "stands" not in repr(pruner)
    pruner.detach()


def test_a_cubic_without_an_end_ends_with_the_training_too():
    pruner = scheduled(pw.Cubic(0.6, begin=4, every=2), total_steps=13)
    assert pruner.schedule == pw.Cubic(0.6, begin=4, end=13, every=1)
    go(pruner, range(13))
    assert pruner.sparsity == pytest.approx(0.6, abs=0.01)


def test_an_end_of_its_own_is_kept():
    cubic, stairs = pw.Cubic(0.6, end=40), pw.Stairs((0.5, 0.9), begin=10, every=20)
    assert scheduled(cubic, total_steps=100).schedule == cubic
    assert scheduled(stairs, total_steps=30).schedule == stairs
    assert scheduled({3: 0.5}.get, total_steps=2).schedule(3) == 0.5


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        (pw.Cubic(0.6, end=400), "end=400.*total_steps=200"),
        ("stairs", "step 3,000.*total_steps=200"),
        (pw.Cubic(0.6, begin=300), "ends at step 200.*begins at 300"),
    ],
    ids=repr,
)
def test_one_that_the_training_is_too_short_for_is_refused(schedule, match):
    with pytest.raises(ValueError, match=match):
        scheduled(schedule, total_steps=200)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="total_steps=0"):
        scheduled(total_steps=0)
    with pytest.raises(ValueError, match="total_steps=9 .*schedule='cubic'"):
        scheduled(None, total_steps=9)


def test_an_end_that_nobody_told_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, logger="prunewald"):
        pruner = scheduled()
        go(pruner, range(3))
    (said,) = caplog.records
    assert "step 10,000" in said.message
    assert "total_steps" in said.message
    caplog.clear()
    scheduled(total_steps=9)
    scheduled(pw.Cubic(0.9, end=9))
    assert not caplog.records


# ---- before the end ----------------------------------------------------------------------------------------------


def test_the_report_and_the_pruner_say_where_it_stands():
    pruner = scheduled(pw.Cubic(0.8, end=20, every=3))
    go(pruner, range(4))
    report = pruner.report
    assert report is not None
    assert report.unfinished in str(report)
    assert report.unfinished in report._repr_html_()
    assert "step 3 of 20" in report.unfinished
    assert "of 80.00%, step 4 of 20" in repr(pruner)
    go(pruner, range(4, 20))
    assert pruner.report is not None
    assert pruner.report.unfinished == ""
    assert "step" not in repr(pruner)


def test_a_file_saved_too_early_is_a_warning_and_tells(tmp_path):
    pruner = scheduled(pw.Cubic(0.8, end=20, every=3))
    go(pruner, range(4))
    with pytest.warns(UserWarning, match=r"early.pw.*of 80.00%, step 3 of 20"):
        pw.save(pruner, tmp_path / "early.pw")
    kept = inspect(tmp_path / "early.pw").report
    assert kept is not None
    assert "step 3 of 20" in kept.unfinished
    go(pruner, range(4, 20))
    pw.save(pruner, tmp_path / "late.pw")


def test_what_was_pruned_by_hand_is_done(tmp_path):
    pruner = scheduled(pw.Cubic(0.8, end=20, every=3))
    go(pruner, range(4))
    pruner.prune(0.8)
    pw.save(pruner, tmp_path / "done.pw")
    pruner.detach()


def test_the_end_of_a_with_block_before_that_of_the_schedule_is_a_warning():
    said = r"of 90.00%, step 5 of 10,000, and goes no further.*total_steps"
    with pytest.warns(UserWarning, match=said), scheduled() as pruner:
        go(pruner, range(5))
    pruner.detach()


def test_an_error_in_a_with_block_is_not_talked_over():
    def fail(*_: object) -> None:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"), scheduled() as pruner:
        go(pruner, range(5), step=fail)


def test_to_detach_stops_it_without_a_word():
    pruner = scheduled()
    go(pruner, range(5))
    pruner.detach()


def test_checkpoints_and_validation_on_the_way_are_no_reason_to_warn():
    pruner = scheduled(total_steps=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go(pruner, range(5))
        pruner.state_dict()
        pruner.model.state_dict()
        pruner.model.eval()(torch.randn(2, 6))


def test_a_resumed_schedule_stands_where_it_stood():
    pruner, other = scheduled(total_steps=20), scheduled(total_steps=20)
    go(pruner, range(7))
    other.load_state_dict(pruner.state_dict())
    assert "step 7 of 20" in repr(other)


def test_one_that_rounding_kept_from_its_level_is_done_at_its_end():
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=pw.Cubic(0.95, end=3, every=1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    assert pruner.sparsity < 0.9
    assert not pruner.at_work
    pruner.detach()
