"""Gradual pruning: what is put off until it can be told, and resuming."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.pruning.helpers import CUBIC, LEVELS, adam, go
from tests.resuming import same
from tests.training import hooks_on, loss_of, net, sgd

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]


# ---- when nothing can be told yet --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uncertainty": pw.PseudoBootstrap(last=5, total_steps=20)}, "total_steps.*leave that out"),
        (
            {"uncertainty": pw.PseudoBootstrap(), "schedule": pw.Cubic(0.9, end=20, every=1)},
            r"step 1.*PseudoBootstrap\(last=200.*step 2: begin later",
        ),
        (
            {"uncertainty": pw.PseudoBootstrap(every=7), "schedule": pw.Stairs((0.5,), begin=13)},
            "13,.*14: begin later",
        ),
        (
            {"uncertainty": pw.BatchMeans(length=7), "schedule": pw.Stairs((0.5,), begin=13)},
            "13,.*14: begin later",
        ),
        ({"pattern": "n-of-m"}, r"KeepNOfM\(.*set final=0.5"),
        ({"schedule": "cubical"}, "'cubical'.*cubic, stairs"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_attached(options, message):
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = sgd(model)
    with pytest.raises(ValueError, match=message):
        pw.Pruner(model, optimizer, **{"schedule": CUBIC, **options})
    assert hooks_on(model, optimizer) == 0


def test_a_schedule_that_is_none_is_refused():
    with pytest.raises(TypeError, match="schedule=0.9.*Cubic"):
        pw.Pruner(net(), schedule=0.9)


def test_an_estimator_that_is_not_asked_need_not_be_ready():
    model = net()
    pruner = pw.Pruner(model, sgd(model), criterion="magnitude", uncertainty="batch-means", schedule=CUBIC)
    go(pruner, range(9))
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("estimator", [pw.PseudoBootstrap(last=3), pw.BatchMeans(length=2)], ids=repr)
def test_a_pruning_that_has_to_wait_is_made_up_for(estimator):
    model = net()
    pruner = pw.Pruner(model, sgd(model), uncertainty=estimator, schedule=pw.Stairs((0.5, 0.8), begin=5, every=10))
    go(pruner, range(4))
    pruner.prune(0.1)  # the window starts anew, one step before the schedule's first level
    with pytest.warns(UserWarning, match="step 5 is put off.*needs two"):
        go(pruner, range(4, 5))
    steps = 1
    while pruner.sparsity < 0.4:
        assert pruner.sparsity == pytest.approx(0.1, abs=0.01)
        assert steps < 4
        go(pruner, range(5, 6))
        steps += 1
    assert pruner.sparsity == 0.5
    assert steps == (2 if isinstance(estimator, pw.PseudoBootstrap) else 4)
    go(pruner, range(6, 11))
    assert pruner.sparsity == 0.5


def test_a_layer_that_gets_its_first_gradient_late():
    """As where the next layer starts at zero: no reason to stop a training at its first step."""
    model = net()
    nn.init.zeros_(model[2].weight)
    pruner = pw.Pruner(model, adam(model), schedule=pw.Stairs((0.5,), begin=1))
    with pytest.warns(UserWarning, match=r"step 1 is put off.*'0.weight' got no gradient"):
        go(pruner, range(1))
    assert pruner.sparsity == 0
    go(pruner, range(1, 2))
    assert pruner.sparsity == 0.5


def test_an_optimizer_that_steps_later_than_the_last():
    model = net()
    late, last = adam(model[0]), adam(model[2])
    pruner = pw.Pruner(model, [late, last], criterion="wald", schedule=pw.Stairs((0.5,), begin=1))
    loss_of(model, 0).backward()
    with pytest.warns(UserWarning, match="step 1 is put off"):
        last.step()
    last.step()
    late.step()
    assert pruner.sparsity == 0
    last.step()
    assert pruner.sparsity == 0.5


def test_weights_that_are_not_finite_are_an_error_at_once():
    model = net()
    pruner = pw.Pruner(model, sgd(model), criterion="magnitude", schedule=CUBIC)
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="'0.weight'.*earlier checkpoint"):
        go(pruner, range(2))


@pytest.mark.filterwarnings("default:sigma is over")
def test_a_window_that_is_still_short_is_warned_of_once():
    model = net()
    pruner = pw.Pruner(model, sgd(model), uncertainty=pw.PseudoBootstrap(last=200), schedule=CUBIC)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        go(pruner, range(9))
    assert [str(one.message) for one in told] == ["sigma is over 2 snapshots, fewer than last=200"]
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)


# ---- resume ------------------------------------------------------------------------------------------------------


class Training:
    """A run that can be stopped after any step."""

    def __init__(self, choice: dict[str, Any], seed: int = 0) -> None:
        self.model = net(seed)
        self.optimizers = [sgd(self.model[0]), adam(self.model[2])]
        self.pruner = pw.Pruner(self.model, self.optimizers, schedule=CUBIC, **choice)

    def go(self, first: int, last: int) -> "Training":
        for number in range(first, last):
            self.model.zero_grad()
            loss_of(self.model, number).backward()
            for optimizer in self.optimizers:
                optimizer.step()
            if number == 3:
                self.pruner.prune(0.5)  # the window starts anew: the next level, after step 5, is put off
        return self

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "pruner": self.pruner.state_dict(),
        }

    def load(self, path: Path) -> "Training":
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.pruner.load_state_dict(state["pruner"])
        return self


RESUMED: dict[str, dict[str, Any]] = {
    "second-moment": {},
    "rolling": {"uncertainty": pw.PseudoBootstrap(last=4)},
    "platon": {"criterion": "platon", "scope": "global"},
}


@cache
def uninterrupted(choice: str) -> dict[str, Any]:
    run = Training(RESUMED[choice]).go(0, 11)
    assert run.pruner.sparsity == pytest.approx(0.8, abs=0.02)
    return run.state()


@pytest.mark.filterwarnings("ignore:the pruning of step 5 is put off")
@pytest.mark.parametrize("moment", range(1, 11))
@pytest.mark.parametrize("choice", RESUMED)
def test_going_on_is_exact(choice, moment, tmp_path):
    torch.save(Training(RESUMED[choice]).go(0, moment).state(), tmp_path / "state")
    resumed = Training(RESUMED[choice], seed=1).load(tmp_path / "state")
    assert same(resumed.go(moment, 11).state(), uninterrupted(choice))


@pytest.mark.filterwarnings("ignore:the pruning of step 5 is put off")
def test_the_resumed_run_had_a_pruning_to_make_up_for():
    """Guards the test above."""
    run = Training(RESUMED["rolling"]).go(0, 5)
    assert run.pruner.state_dict()["owed"] == pytest.approx(LEVELS[5])
    assert run.go(5, 6).pruner.state_dict()["owed"] == 0


def test_the_state_of_before_there_were_schedules_still_loads():
    state = pw.Pruner(net(), criterion="magnitude").state_dict()
    del state["owed"]
    pw.Pruner(net(), criterion="magnitude").load_state_dict(state)
