"""What cannot work is refused before anything changes."""

import math

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.strategies import Checkpoint, certify_sparsity, find_sparsity, iterative
from tests.resuming import same
from tests.strategies.helpers import LEVELS, trained

pytestmark = pytest.mark.usefixtures("one_thread")


NET = nn.Linear(2, 2)
CHECKPOINT = Checkpoint(NET, torch.optim.SGD(NET.parameters()))


@pytest.mark.parametrize(
    ("levels", "options", "message"),
    [
        ((0.5, 0.9, 0.8), {}, r"\(0.5, 0.9, 0.8\).* 0.9 to 0.8"),
        ((0.5, 0.5), {}, "0.5 twice"),
        ((), {}, r"levels=\(\)"),
        ((0.5, 1.0), {}, r"1\.0"),
        ((0.5, math.nan), {}, "nan"),
        (0.9, {}, "levels=0.9: give rising"),
        ((0.5,), {"lr_factor": 0}, "lr_factor=0: .*above 0"),
        ((0.5,), {"lr_factor": 0.1, "rewind": print}, "lr_factor=0.1 and rewind=<.*print>.*: give one of them"),
        ((0.5,), {"lr_factor": "x"}, "lr_factor='x': .*above 0"),
        ((0.5,), {"dropout": {"1": "0"}}, r"dropout=\{'1': '0'\}"),
        ((0.5,), {"dropout": "2"}, "dropout='2': give True"),
        ((0.5,), {"rewind": CHECKPOINT}, r"rewind=<.*Checkpoint.*>: .*checkpoint.weights_"),
        ((0.5,), {"estimate": {"0.weight": 1}}, r"estimate=\{'0.weight': 1\}: give a function"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(levels, options, message, tmp_path):
    work = trained()
    before = work.state()
    with pytest.raises((ValueError, TypeError), match=message):
        iterative(work.pruner, levels, work.train, folder=tmp_path / "folder", **options)
    assert same(work.state(), before)
    assert not (tmp_path / "folder").exists()


def test_levels_that_the_pattern_cannot_reach_are_refused_at_once():
    work = trained(criterion="magnitude", targets="3.weight", pattern=pw.KeepNOfM(2, 4))
    with pytest.raises(ValueError, match=r"\(0.25, 0.5, 0.75\).* 0.5.*KeepNOfM"):
        iterative(work.pruner, (0.25, 0.5, 0.75), work.train)
    assert not work.trained


def test_a_level_below_what_is_pruned_is_refused():
    work = trained(criterion="magnitude")
    work.pruner.prune(0.5)
    before = work.state()
    with pytest.raises(ValueError, match="would bring weights of '0.weight' back"):
        iterative(work.pruner, LEVELS, work.train)
    assert same(work.state(), before)


def test_options_need_something_to_work_on():
    pruner = pw.Pruner(nn.Linear(4, 4), criterion="magnitude")
    with pytest.raises(ValueError, match="Linear has no dropout module"):
        iterative(pruner, LEVELS, print, dropout=True)
    with pytest.raises(ValueError, match="lr_factor=0.1: .* no optimizer"):
        iterative(pruner, LEVELS, print, lr_factor=0.1)


STRATEGIES = {
    "iterative": lambda work, train: iterative(work.pruner, LEVELS, train),
    "find": lambda work, train: find_sparsity(work.pruner, train, work.accuracy, budget=9),
    "certify": lambda work, train: certify_sparsity(work.pruner, train, work.losses, error=0.9),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_there_must_be_something_that_trains(strategy):
    work = trained()
    before = work.state()
    with pytest.raises(TypeError, match="train=None: give a function"):
        STRATEGIES[strategy](work, None)
    assert same(work.state(), before)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pruner_that_prunes_by_itself_is_refused(strategy):
    work = trained(schedule=pw.Stairs((0.9,), begin=15))
    before = work.state()
    with pytest.raises(ValueError, match=r"schedule=Stairs\(.*without a schedule \(detach\(\)"):
        STRATEGIES[strategy](work, work.train)
    assert same(work.state(), before)
    work.pruner.detach()
    work.pruner = pw.Pruner(work.model, work.optimizer)
    STRATEGIES[strategy](work, work.train)
    assert work.trained


def test_a_model_is_no_pruner():
    with pytest.raises(TypeError, match="Linear is no Pruner: give Pruner\\(model, optimizer\\)"):
        iterative(NET, LEVELS, print)
