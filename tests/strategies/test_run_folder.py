"""Stopping, and going on from what the folder holds."""

import functools
import os
from typing import Any

import numpy as np
import pytest
import torch

import prunewald as pw
from prunewald.strategies import find_sparsity, iterative
from tests.resuming import same
from tests.strategies.helpers import CHOICES, LEVELS, Work, adam, trained
from tests.training import minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")


def interrupted(work, at):
    def train(one):
        if one.index == at:
            work.steps(5)
            raise RuntimeError("out of memory")
        return work.train(one)

    return train


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("at", [1, 3])
def test_a_failed_training_goes_on_from_the_last_finished_round(choice, at, tmp_path):
    whole = trained(**CHOICES[choice])
    expected = iterative(whole.pruner, LEVELS, whole.train)
    failed = trained(**CHOICES[choice])
    with pytest.raises(RuntimeError, match="out of memory"):
        iterative(failed.pruner, LEVELS, interrupted(failed, at), folder=tmp_path)
    for name, mask in failed.pruner.masks.items():
        assert not minus_zero_or_worse(failed.model.get_parameter(name), ~mask)
    torch.manual_seed(99)
    assert iterative(failed.pruner, LEVELS, failed.train, folder=tmp_path) == expected
    assert same(failed.state(), whole.state())
    assert failed.trained == list(LEVELS), "no finished round was trained again"


def test_a_run_left_half_way_leaves_a_pruned_model_that_trains_on(tmp_path):
    whole, left = (trained(uncertainty=pw.PseudoBootstrap(last=10)) for _ in range(2))
    torch.manual_seed(3)
    expected = iterative(whole.pruner, LEVELS, whole.train)

    def train(one):
        result = left.train(one)
        if one.index == 2:
            raise KeyboardInterrupt
        return result

    torch.manual_seed(3)
    with pytest.raises(KeyboardInterrupt):
        iterative(left.pruner, LEVELS, train, folder=tmp_path)
    assert left.pruner.sparsity == pytest.approx(0.6, abs=0.02)
    left.steps(3)
    for name, mask in left.pruner.masks.items():
        assert not minus_zero_or_worse(left.model.get_parameter(name), ~mask)
    assert sorted(os.listdir(tmp_path)) == ["plan.json", "round-00.pt", "round-01.pt"]
    # The second round was trained to its end, but never finished: it is done again.
    assert iterative(left.pruner, LEVELS, left.train, folder=tmp_path) == expected
    assert left.trained == [0.3, 0.6, 0.6, 0.8]
    assert same(left.state(), whole.state())


def test_a_finished_run_is_only_read(tmp_path):
    work, fresh = trained(), Work(seed=5)
    first = iterative(work.pruner, LEVELS, work.train, dropout=True, folder=tmp_path)
    assert iterative(fresh.pruner, LEVELS, fresh.train, dropout=True, folder=tmp_path) == first
    assert not fresh.trained
    assert same(fresh.state(), work.state())


def test_a_missing_round_is_done_again(tmp_path):
    work = trained(criterion="magnitude")
    first = iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    (tmp_path / "round-02.pt").unlink()
    assert iterative(work.pruner, LEVELS, work.train, folder=tmp_path) == first
    assert work.trained == [*LEVELS, 0.6, 0.8]


@pytest.mark.parametrize("broken", ["truncated", "garbage", "empty", "other"])
def test_a_broken_file_is_named(broken, tmp_path):
    work = trained(criterion="magnitude")
    iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    file, before = tmp_path / "round-02.pt", work.state()
    if broken == "other":
        torch.save({"epoch": 3}, file)
    else:
        whole = file.read_bytes()
        file.write_bytes({"truncated": whole[: len(whole) // 2], "garbage": b"\x80\x02}garbage", "empty": b""}[broken])
    with pytest.raises(ValueError, match="round-02.pt' .*: delete it"):
        iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    assert same(work.state(), before)
    file.unlink()
    assert len(iterative(work.pruner, LEVELS, work.train, folder=tmp_path)) == 3


OTHERS: dict[str, Any] = {
    "levels": lambda work: iterative(work.pruner, (0.3, 0.6, 0.85), print, folder=work.folder),
    "criterion": lambda work: iterative(Work(criterion="random").pruner, LEVELS, print, folder=work.folder),
    "Adam": lambda work: iterative(
        Work(criterion="magnitude", optimizer=adam).pruner, LEVELS, print, folder=work.folder
    ),
    "lr_factor": lambda work: iterative(work.pruner, LEVELS, print, lr_factor=0.1, folder=work.folder),
    "rewind": lambda work: iterative(work.pruner, LEVELS, print, rewind=print, folder=work.folder),
    "dropout": lambda work: iterative(work.pruner, LEVELS, print, dropout=True, folder=work.folder),
    "targets": lambda work: iterative(
        Work(criterion="magnitude", targets="3.weight").pruner, LEVELS, print, folder=work.folder
    ),
    "budget": lambda work: find_sparsity(
        work.pruner, work.train, work.accuracy, budget=1, levels=LEVELS, folder=work.folder
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_plan_is_refused_and_what_differs_is_shown(other, tmp_path):
    work = trained(criterion="magnitude")
    work.folder = tmp_path
    iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    before = work.state()
    with pytest.raises(ValueError, match="holds another run") as error:
        OTHERS[other](work)
    shown = {
        "levels": "levels is [0.3, 0.6, 0.8] there and [0.3, 0.6, 0.85] here",
        "criterion": "criterion is Magnitude() there and Random() here",
        "Adam": "optimizers is ['SGD'] there and ['Adam'] here",
        "lr_factor": "lr_factor is None there and 0.1 here",
        "rewind": "rewind is False there and True here",
        "dropout": "dropout is False there and True here",
        "budget": "lr_factor is None there and absent here; rewind is False there and absent here; "
        "dropout is False there and absent here",
        "targets": "'0.weight' is [8, 6] there and absent here",
    }[other]
    assert f"{str(tmp_path)!r} holds another run: {shown}. Give another folder" in str(error.value)
    assert same(work.state() | {"random": None}, before | {"random": None})


def by_power(power, stats):
    return stats.weight.abs() ** power


def test_a_function_is_the_same_in_another_process(tmp_path):
    """Its repr has an address, which is not part of the plan."""
    for power in (functools.partial(by_power, 2), functools.partial(lambda p, stats: by_power(p, stats), 2)):
        work = trained(criterion=power)
        iterative(work.pruner, LEVELS, work.train, folder=tmp_path / "folder")
        plan = (tmp_path / "folder" / "plan.json").read_text()
        assert "0x" not in plan
        for file in (tmp_path / "folder").iterdir():
            file.unlink()


@pytest.mark.parametrize("text", ["", "{", "[1]", "7"])
def test_a_broken_plan_is_named(text, tmp_path):
    work = trained(criterion="magnitude")
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match="plan.json' .*: give another folder"):
        iterative(work.pruner, LEVELS, work.train, folder=tmp_path)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numbers_of_numpy_are_kept_and_read(kind, tmp_path):
    """Levels, the share of the learning rate, and what a scheduler or a user put into the optimizer and the model."""

    def given(params):
        made = torch.optim.Adam(params, lr=kind(0.01), weight_decay=kind(0.001))
        made.param_groups[0]["betas"] = (kind(0.9), 0.999)
        return made

    work, fresh = (trained(optimizer=given) for _ in range(2))
    work.model[2].p = fresh.model[2].p = kind(0.5)
    levels = np.linspace(0.3, 0.5, 3, dtype=kind)
    first = iterative(work.pruner, levels, work.train, lr_factor=kind(0.1), dropout=True, folder=tmp_path / "rounds")
    again = iterative(fresh.pruner, levels, fresh.train, lr_factor=kind(0.1), dropout=True, folder=tmp_path / "rounds")
    assert again == first
    assert not fresh.trained
    assert [type(one.sparsity) for one in first] == [float] * 3
    for _ in range(2):
        find_sparsity(
            fresh.pruner,
            fresh.train,
            fresh.accuracy,
            budget=kind(9),
            levels=levels + kind(0.4),
            folder=tmp_path / "search",
        )
    assert fresh.trained == pytest.approx([0.7, 0.8, 0.9])


# ---- an estimator that has nothing to tell -----------------------------------------------------------------------


def test_a_training_of_another_length_than_total_steps_says_what_to_do_and_that_works(tmp_path):
    work = trained(uncertainty=pw.PseudoBootstrap(last=10, total_steps=20), steps=20)
    with pytest.raises(ValueError, match="the pruning to 0.6") as error:
        iterative(work.pruner, LEVELS, lambda one: work.steps(8), folder=tmp_path)
    assert "PseudoBootstrap(last=10, total_steps=20) has 0 snapshot(s) after 8 step(s)" in str(error.value)
    assert "; PseudoBootstrap(last=10) takes" in str(error.value)
    assert work.pruner.sparsity == pytest.approx(0.3, abs=0.01)
    fresh = trained(uncertainty=pw.PseudoBootstrap(last=10))
    with pytest.warns(UserWarning, match="sigma is over 8 snapshots"):
        found = iterative(fresh.pruner, LEVELS, lambda one: fresh.steps(8), folder=tmp_path)
    assert [one.sparsity for one in found] == list(LEVELS)


def test_total_steps_that_fit_are_fine():
    work = trained(uncertainty=pw.PseudoBootstrap(last=5, total_steps=12))
    assert len(iterative(work.pruner, LEVELS, work.train)) == 3


def test_a_start_that_cannot_be_pruned_is_not_kept(tmp_path):
    """More training makes up for it, and must not be undone."""
    work = Work(uncertainty=pw.PseudoBootstrap(last=10))
    with pytest.raises(ValueError, match="the pruning to 0.3: .* 0 snapshot"):
        iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    work.steps(12)
    assert len(iterative(work.pruner, LEVELS, work.train, folder=tmp_path)) == 3


def test_a_training_without_steps_is_done_again(tmp_path):
    work = trained(uncertainty=pw.PseudoBootstrap(last=10))
    with pytest.raises(ValueError, match="the pruning to 0.6: .* 0 snapshot"):
        iterative(work.pruner, LEVELS, lambda one: None, folder=tmp_path)
    assert len(iterative(work.pruner, LEVELS, work.train, folder=tmp_path)) == 3
    assert work.trained == list(LEVELS)
