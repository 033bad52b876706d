import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR

from prunewald.strategies import iterative
from tests.strategies.helpers import LEVELS, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def two_groups(params):
    first, *rest = params
    return torch.optim.SGD([{"params": [first], "lr": torch.tensor(0.2)}, {"params": rest, "lr": 0.1}], foreach=True)


@pytest.mark.parametrize("schedule", [False, True])
def test_the_factor_of_the_learning_rate_does_not_compound(schedule):
    work, begun = trained(criterion="magnitude", optimizer=two_groups), []

    def train(one):
        # LambdaLR goes by the `initial_lr` that the first scheduler leaves behind.
        scheduler = LambdaLR(work.optimizer, lambda step: 0.5**step) if schedule else None
        begun.append([float(group["lr"]) for group in work.optimizer.param_groups])
        for _ in range(3):
            work.steps(1)
            if scheduler is not None:
                scheduler.step()

    iterative(work.pruner, LEVELS, train, lr_factor=0.1)
    assert begun == [pytest.approx([0.02, 0.01])] * 3
    iterative(work.pruner, (0.9,), train, lr_factor=1.0)
    assert begun[-1] == pytest.approx([0.02, 0.01])


@pytest.mark.parametrize("scheduler", [CosineAnnealingLR, LinearLR])
def test_the_factor_is_of_the_rate_before_a_scheduler_changed_it(scheduler):
    work, begun = trained(criterion="magnitude"), []
    decay = scheduler(work.optimizer, total_iters=6, end_factor=0.0) if scheduler is LinearLR else None
    decay = decay or scheduler(work.optimizer, 6)
    for _ in range(6):
        work.steps(1)
        decay.step()
    assert work.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    iterative(work.pruner, LEVELS, lambda one: begun.append(work.optimizer.param_groups[0]["lr"]), lr_factor=0.1)
    assert begun == [pytest.approx(0.01)] * 3


def test_a_factor_of_nothing_is_refused():
    work = trained(criterion="magnitude")
    work.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match="lr_factor=0.1 .* 0: set that rate"):
        iterative(work.pruner, LEVELS, work.train, lr_factor=0.1)
    assert not work.trained
    assert not work.pruner.sparsity


def test_a_group_that_does_not_learn_stays_so():
    work, begun = trained(criterion="magnitude", optimizer=two_groups), []
    work.optimizer.param_groups[1]["lr"] = 0.0
    iterative(
        work.pruner, (0.5,), lambda one: begun.extend(g["lr"] for g in work.optimizer.param_groups), lr_factor=0.1
    )
    assert begun == [pytest.approx(0.02), 0]


def test_the_learning_rate_goes_on_from_the_folder(tmp_path):
    work, begun = trained(criterion="magnitude"), []

    def train(one):
        begun.append(work.optimizer.param_groups[0]["lr"])
        if one.index == 2 and len(begun) == 2:
            raise KeyboardInterrupt
        work.optimizer.param_groups[0]["lr"] = 123.0

    with pytest.raises(KeyboardInterrupt):
        iterative(work.pruner, LEVELS, train, lr_factor=0.1, folder=tmp_path)
    iterative(work.pruner, LEVELS, train, lr_factor=0.1, folder=tmp_path)
    assert begun == [pytest.approx(0.01)] * 4
