import copy
import dataclasses
import gc
import json
import pickle

import numpy as np
import pytest
import torch

import prunewald as pw
from prunewald.strategies import BudgetError, find_sparsity
from tests.resuming import same
from tests.strategies.helpers import Work, adam, trained
from tests.training import net, one_step

pytestmark = pytest.mark.usefixtures("one_thread")
LEVELS = (0.3, 0.5, 0.8)
WINDOW = {"uncertainty": pw.PseudoBootstrap(last=10)}
CHOICES = {
    "window": WINDOW,
    "adam": {"optimizer": adam},
    "snip": {"criterion": "snip"},
    "wanda": {"criterion": "wanda"},
    "movement": {"criterion": "movement"},
}


@pytest.mark.parametrize("chosen", LEVELS)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("memory", [True, False])
def test_every_candidate_is_what_pruning_to_it_alone_gives(choice, memory, chosen, tmp_path):
    """Weights, moments, masks, estimator, gradients, random numbers, report: nothing of another candidate is left."""
    by_hand = trained(**CHOICES[choice])
    by_hand.pruner.prune(chosen)
    by_hand.steps(12)
    expected = by_hand.state()
    work = trained(**CHOICES[choice])

    def evaluate():
        work.accuracy()  # what it does to a statistic must not matter
        return {0.0: 1.0, chosen: 1.0}.get(round(work.pruner.sparsity, 1), 0.0)

    folder = None if memory else tmp_path
    find_sparsity(work.pruner, work.train, evaluate, budget=0, levels=LEVELS, folder=folder)
    assert work.trained == list(LEVELS)
    assert same(work.state(), expected)


def test_offline_sigmas_are_estimated_for_every_candidate():
    work, calls = trained(criterion="magnitude-uncertainty"), []
    given = work.pruner.uncertainty

    def estimate():
        calls.append(work.pruner.sparsity)
        return {name: torch.rand_like(p) for name, p in work.model.named_parameters()}

    find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=LEVELS, estimate=estimate)
    assert calls == [0.0, 0.0, 0.0]
    assert work.pruner.uncertainty is given


@pytest.mark.parametrize("fails", ["budget", "train", "evaluate", "estimate", "interrupt"])
@pytest.mark.parametrize("choice", CHOICES)
def test_on_any_error_the_model_is_as_it_was(fails, choice):
    work = trained(**CHOICES[choice])
    before = work.state()

    def train(one):
        work.train(one)
        if one.index == 2 and fails in ("train", "interrupt"):
            raise KeyboardInterrupt if fails == "interrupt" else ZeroDivisionError

    def evaluate():
        if fails == "evaluate" and len(work.trained) == 2:
            raise ZeroDivisionError
        work.accuracy()
        return -work.pruner.sparsity

    def estimate():
        if len(work.trained) == 1:
            raise ZeroDivisionError
        return {name: torch.ones_like(p) for name, p in work.model.named_parameters()}

    kind = {"budget": BudgetError, "interrupt": KeyboardInterrupt}.get(fails, ZeroDivisionError)
    with pytest.raises(kind) as error:
        find_sparsity(
            work.pruner,
            train,
            evaluate,
            budget=0.1 if fails == "budget" else 9,
            levels=LEVELS,
            estimate=estimate if fails == "estimate" else None,
        )
    assert same(work.state(), before)
    if fails == "budget":
        assert "no level keeps the loss within 0.1: 0.3 loses 0.3, 0.5 loses 0.5, 0.8 loses 0.8" in str(error.value)


@pytest.mark.parametrize("memory", [True, False])
def test_every_candidate_can_be_restored(memory, tmp_path):
    work, seen = trained(**WINDOW), {}

    def evaluate():
        seen[round(work.pruner.sparsity, 1)] = work.state()
        return 1.0

    search = find_sparsity(
        work.pruner, work.train, evaluate, budget=0, levels=LEVELS, folder=None if memory else tmp_path
    )
    for level in (0.5, np.float32(0.5).item(), 0.3, 0.8, None):
        work.steps(2)
        search.restore_(level)
        assert same(work.state(), seen[level or 0.0]), level
    for wrong in (0.4, 0):
        with pytest.raises(ValueError, match=rf"no candidate at {wrong}: .*\[0.3, 0.5, 0.8\], and None"):
            search.restore_(wrong)
    assert same(work.state(), seen[0.0])


def test_a_search_is_plain_data_apart_from_its_candidates():
    work = trained(**WINDOW)
    search = find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=LEVELS)
    again = pickle.loads(pickle.dumps(search))
    assert again == search == copy.deepcopy(search)
    assert json.loads(json.dumps(dataclasses.asdict(search)))["best"]["sparsity"] == 0.8
    with pytest.raises(ValueError, match="this Search is a copy.*: restore from"):
        again.restore_(0.5)


def test_a_start_that_cannot_be_pruned_is_not_kept(tmp_path):
    """More training makes up for it, and must not be undone."""
    work = Work(**WINDOW)
    with pytest.raises(ValueError, match="0 snapshot"):
        find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=LEVELS, folder=tmp_path)
    work.steps(12)
    assert find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=LEVELS, folder=tmp_path)


def test_levels_that_are_close_are_two(tmp_path):
    work = trained(**WINDOW)
    levels = (0.5, 0.5000001)
    find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=levels, folder=tmp_path)
    assert work.trained == list(levels)


def test_a_broken_candidate_is_named(tmp_path):
    work = trained(**WINDOW)
    find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=LEVELS, folder=tmp_path)
    file = tmp_path / "level-0.5.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="level-0.5.pt' .*: delete it"):
        find_sparsity(work.pruner, work.train, work.accuracy, budget=9, levels=LEVELS, folder=tmp_path)


def stepped(pruner, scheduler):
    """A training that steps a scheduler, and the learning rates it began with."""
    (optimizer,), rates = pruner.optimizers, []

    def train(one):
        rates.append(optimizer.param_groups[0]["lr"])
        one_step(pruner.model, optimizer, 0)
        scheduler.step()

    return train, rates


def scheduled():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    one_step(model, optimizer, 0)
    return pw.Pruner(model, optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_a_scheduler_is_set_back_with_its_candidate():
    pruner, scheduler = scheduled()
    train, rates = stepped(pruner, scheduler)
    pw.strategies.find_sparsity(pruner, train, lambda: 1.0, budget=1.0, levels=(0.3, 0.5, 0.7), also=[scheduler])
    assert rates == [0.01] * 3
    assert scheduler.last_epoch == 1


def test_a_scheduler_that_is_not_set_back_is_named_once():
    pruner, scheduler = scheduled()
    train, _ = stepped(pruner, scheduler)
    with pytest.warns(UserWarning, match=r"also=\[scheduler\]") as said:
        pw.strategies.find_sparsity(pruner, train, lambda: 1.0, budget=1.0, levels=(0.3, 0.5, 0.7))
    assert len(said) == 1


def test_candidates_without_a_folder_are_on_disk_while_the_search_lives(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pruner, _ = scheduled()
    search = pw.strategies.find_sparsity(pruner, lambda one: None, lambda: 1.0, budget=1.0, levels=(0.3, 0.5))
    assert {file.name for file in tmp_path.glob("*/*.pt")} == {"start.pt", "level-0.3.pt", "level-0.5.pt"}
    search.restore_(0.3)
    assert pruner.sparsity == pytest.approx(0.3, abs=0.02)
    del search
    gc.collect()
    assert not list(tmp_path.iterdir())
