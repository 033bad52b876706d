import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import prunewald as pw
from prunewald.strategies import Checkpoint, iterative
from prunewald.util.trees import copied
from tests.resuming import same
from tests.strategies.helpers import LEVELS, Work, adam, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rewound_weights_are_those_of_the_checkpoint_where_they_are_alive():
    work = Work(optimizer=adam)
    work.steps(5)
    early, weights = Checkpoint(work.model, work.optimizer), copied(work.model.state_dict())
    moments = copied(work.optimizer.state_dict())
    work.steps(20)
    work.optimizer.param_groups[0]["lr"] = 0.5
    seen = []

    def train(one):
        masks = work.pruner.masks
        for name, value in work.model.state_dict().items():
            alive = masks.get(name, torch.ones_like(value, dtype=torch.bool))
            assert torch.equal(value, torch.where(alive, weights[name], 0.0)), name
        for at, (name, param) in enumerate(work.model.named_parameters()):
            alive = masks.get(name, torch.ones_like(param, dtype=torch.bool))
            state, before = work.optimizer.state[param], moments["state"][at]
            assert torch.equal(state["exp_avg"], torch.where(alive, before["exp_avg"], 0.0))
            assert torch.equal(state["exp_avg_sq"], before["exp_avg_sq"])
            assert state["step"] == before["step"] == 5
        assert work.optimizer.param_groups[0]["lr"] == 0.01
        work.steps(12)
        seen.append(masks)

    iterative(work.pruner, LEVELS, train, rewind=early.weights_)
    assert [round(float(1 - m["0.weight"].float().mean()), 1) for m in seen] == [0.3, 0.6, 0.8]


def test_both_ways_back_can_be_called():
    work = trained(optimizer=adam)
    early, before = Checkpoint(torch.compile(work.model), work.optimizer), work.state()
    work.steps(3)
    weights = copied(work.model.state_dict())
    work.optimizer.param_groups[0]["lr"] = 0.5
    early.lr_()
    assert work.optimizer.param_groups[0]["lr"] == 0.01
    assert same(copied(work.model.state_dict()), weights), "the weights stay"
    early.weights_()
    assert same(work.state()["model"], before["model"])
    assert same(work.state()["optimizer"], before["optimizer"])


def test_a_way_back_has_the_name_that_one_gives():
    work = trained(criterion="magnitude")
    early = Checkpoint(work.model, work.optimizer)
    with pytest.raises(ValueError, match=r"lr_factor=0.1 and rewind=checkpoint.lr_ .*: give one"):
        iterative(work.pruner, LEVELS, work.train, rewind=early.lr_, lr_factor=0.1)


def decayed(work, begun):
    """A training with a schedule of its own, that ends at nothing."""

    def train(one):
        scheduler = CosineAnnealingLR(work.optimizer, 6)
        begun.append(float(work.optimizer.param_groups[0]["lr"]))
        for _ in range(6):
            work.steps(1)
            scheduler.step()

    return train


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_a_rewound_learning_rate_starts_every_round_alike(lr):
    work = trained(uncertainty=pw.SecondMoment(), optimizer=lambda params: torch.optim.SGD(params, lr=lr, foreach=True))
    early, begun, weights = Checkpoint(work.model, work.optimizer), [], []
    decayed(work, [])(None)
    held = work.optimizer.param_groups[0]["lr"]
    assert held < 1e-6
    train = decayed(work, begun)

    def watched(one):
        weights.append(copied(work.model.state_dict()))
        train(one)

    iterative(work.pruner, LEVELS, watched, rewind=early.lr_)
    assert begun == [pytest.approx(0.1)] * 3
    assert not torch.equal(weights[0]["0.weight"][0], weights[1]["0.weight"][0]), "the weights go on"
    if isinstance(held, torch.Tensor):
        assert work.optimizer.param_groups[0]["lr"] is held, "what a captured step reads"


def test_a_rewound_learning_rate_is_also_what_the_next_scheduler_begins_with():
    work, begun = trained(criterion="magnitude"), []
    early = Checkpoint(work.model, work.optimizer)
    work.optimizer.param_groups[0]["lr"] = 7.0
    LambdaLR(work.optimizer, lambda step: 1.0)  # leaves its initial_lr behind, and LambdaLR goes by that

    def train(one):
        LambdaLR(work.optimizer, lambda step: 1.0)
        begun.append(work.optimizer.param_groups[0]["lr"])

    iterative(work.pruner, LEVELS, train, rewind=early.lr_)
    assert begun == [0.1] * 3


def test_without_rewinding_a_decay_lasts():
    """Guards the test above."""
    work, begun = trained(criterion="magnitude"), []
    iterative(work.pruner, LEVELS, decayed(work, begun))
    assert begun[1:] == [pytest.approx(0, abs=1e-6)] * 2
