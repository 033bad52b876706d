"""Copies that the Pruner follows, such as an EMA, go with the model: to every start, candidate and round."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from prunewald.strategies import BudgetError, Checkpoint, certify_sparsity, find_sparsity, iterative
from prunewald.util.trees import copied
from tests.resuming import same
from tests.strategies.helpers import LEVELS, Work
from tests.training import minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")
COPIES = {
    "ema": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "swa": lambda model: AveragedModel(model, use_buffers=True),
    "own": copy.deepcopy,
}


class Averaged(Work):
    """A training that updates an average after every step."""

    def __init__(self, kind: str = "ema", seed: int = 0, **choice: Any) -> None:
        super().__init__(seed, criterion="magnitude", **choice)
        self.average: nn.Module = COPIES[kind](self.model)
        self.pruner.follow(self.average)
        self.steps(12)

    def steps(self, count: int) -> float:
        for _ in range(count):
            loss = super().steps(1)
            self.update()
        return loss

    @torch.no_grad()
    def update(self) -> None:
        if isinstance(self.average, AveragedModel):
            self.average.update_parameters(self.model)
            return
        for mine, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mine.lerp_(new, 0.1)

    def state(self) -> dict[str, Any]:
        return super().state() | {"average": copied(self.average.state_dict())}


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("level", [0.3, 0.8])
def test_the_copy_is_that_of_the_candidate_that_was_chosen(kind, level, memory, tmp_path):
    by_hand = Averaged(kind)
    by_hand.pruner.prune(level)
    by_hand.steps(12)
    expected, work = by_hand.state(), Averaged(kind)

    def evaluate():
        return {0.0: 1.0, level: 1.0}.get(round(work.pruner.sparsity, 1), 0.0)

    folder = None if memory else tmp_path
    before = work.state()
    search = find_sparsity(work.pruner, work.train, evaluate, budget=0, levels=LEVELS, folder=folder)
    assert same(work.state(), expected)
    work.pruner.prune(0.9)
    search.restore_(None)
    assert same(work.state(), before)


@pytest.mark.parametrize("kind", COPIES)
def test_without_any_that_fits_the_copy_is_as_it_was(kind):
    work = Averaged(kind)
    before = work.state()
    with pytest.raises(BudgetError):
        find_sparsity(work.pruner, work.train, lambda: -work.pruner.sparsity, budget=0.1, levels=LEVELS)
    assert same(work.state(), before)
    with pytest.raises(BudgetError):
        certify_sparsity(work.pruner, work.train, work.losses, error=0.001, levels=LEVELS)
    assert same(work.state(), before)


def test_a_certified_copy_is_that_of_the_level():
    by_hand = Averaged()
    by_hand.pruner.prune(0.3)
    by_hand.steps(12)
    expected, work = by_hand.state(), Averaged()
    found = certify_sparsity(work.pruner, work.train, work.losses, drop=0.2, levels=(0.3, 0.95))
    assert found.sparsity == 0.3
    assert len(found.tested) == 2
    assert same(work.state(), expected)


@pytest.mark.parametrize("kind", COPIES)
def test_rounds_go_on_with_their_copy(kind, tmp_path):
    whole = Averaged(kind)
    iterative(whole.pruner, LEVELS, whole.train)
    expected, failed = whole.state(), Averaged(kind)

    def train(one):
        failed.train(one)
        if one.index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        iterative(failed.pruner, LEVELS, train, folder=tmp_path)
    fresh = Averaged(kind, seed=3)
    iterative(fresh.pruner, LEVELS, fresh.train, folder=tmp_path)
    assert fresh.trained == [0.8]
    assert same(fresh.state(), expected)


def test_a_copy_that_is_followed_no_more_is_told(tmp_path):
    work, fresh = Averaged(), Work(criterion="magnitude")
    iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    with pytest.warns(UserWarning, match="1 copies .* follows 0: call follow"):
        iterative(fresh.pruner, LEVELS, fresh.train, folder=tmp_path)


def test_a_copy_made_for_each_candidate_is_left_to_it():
    work, made, seen = Work(criterion="magnitude"), [], []
    work.steps(12)

    def train(one):
        made.append(AveragedModel(work.model))
        work.pruner.follow(made[-1])
        work.train(one)
        made[-1].update_parameters(work.model)
        seen.append(copied(made[-1].state_dict()))

    def evaluate():
        return 1.0 if work.pruner.sparsity < 0.7 else 0.0

    find_sparsity(work.pruner, train, evaluate, budget=0, levels=LEVELS)
    assert same(copied(made[0].state_dict()), seen[0])
    assert same(copied(made[1].state_dict()), seen[1])
    assert same(copied(made[2].state_dict()), seen[1]), "the last one made is what the Pruner follows"
    assert list(work.pruner.copies) == [made[2]]


# ---- rewinding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COPIES)
def test_a_rewound_copy_is_that_of_the_checkpoint_with_the_zeros(kind):
    work = Averaged(kind)
    early = Checkpoint(work.model, work.optimizer, work.average)
    held = copied(work.average.state_dict())
    work.steps(12)
    inside = getattr(work.average, "module", work.average)

    def train(one):
        for name, param in inside.named_parameters():
            alive = work.pruner.masks.get(name, torch.ones_like(param, dtype=torch.bool))
            value = held[f"module.{name}" if inside is not work.average else name]
            assert torch.equal(param[alive], value[alive])
            assert not minus_zero_or_worse(param, ~alive)
        work.train(one)

    iterative(work.pruner, LEVELS, train, rewind=early.weights_)
    assert work.trained == list(LEVELS)


def test_a_checkpoint_without_the_copy_is_refused():
    work = Averaged()
    early = Checkpoint(work.model, work.optimizer)
    with pytest.raises(ValueError, match=r"AveragedModel.*: take Checkpoint\(model, optimizer, copy\)"):
        iterative(work.pruner, LEVELS, work.train, rewind=early.weights_)
    assert not work.pruner.sparsity
    iterative(work.pruner, LEVELS, work.train, rewind=early.lr_)
    assert work.trained == list(LEVELS)
