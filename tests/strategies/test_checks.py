"""What cannot work is refused before anything changes."""

import functools
import math

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.resuming import same
from tests.strategies.helpers import LEVELS, trained

pytestmark = pytest.mark.usefixtures("one_thread")


NET = nn.Linear(2, 2)
CHECKPOINT = pw.Checkpoint(NET, torch.optim.SGD(NET.parameters()))


@pytest.mark.parametrize(
    ("levels", "options", "message"),
    [
        ((0.5, 0.9, 0.8), {}, r"levels \(0.5, 0.9, 0.8\) fall from 0.9 to 0.8"),
        ((0.5, 0.5), {}, "have 0.5 twice"),
        ((), {}, "no levels were given"),
        ((0.5, 1.0), {}, "below 1, and 1.0 is not"),
        ((0.5, math.nan), {}, "nan is not"),
        (0.9, {}, "levels=0.9: give rising sparsities"),
        ((0.5,), {"lr": 0}, "lr=0: the share"),
        ((0.5,), {"lr": 0.1, "rewind": print}, "lr=0.1 and rewind=.* both set the learning rate"),
        ((0.5,), {"lr": "x"}, "lr='x': give a number, the share of the learning rate"),
        ((0.5,), {"dropout": {"1": "0"}}, r"dropout=\{'1': '0'\}"),
        ((0.5,), {"dropout": "2"}, "dropout='2': give True, or for each dropout module the layer before it"),
        ((0.5,), {"rewind": CHECKPOINT}, r"rewind=<.*Checkpoint.*>: give a function, .*rewind=checkpoint.weights_"),
        ((0.5,), {"estimate": {"0.weight": 1}}, r"estimate=\{'0.weight': 1\}: give a function that gives sigma"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(levels, options, message, tmp_path):
    work = trained()
    before = work.state()
    for run in (pw.rounds, functools.partial(pw.iterative, train=work.train)):
        with pytest.raises((ValueError, TypeError), match=message):
            run(work.pruner, levels=levels, folder=tmp_path / "folder", **options)
    assert same(work.state(), before)
    assert not (tmp_path / "folder").exists()


def test_levels_that_the_pattern_cannot_reach_are_refused_at_once():
    work = trained(criterion="magnitude", targets="3.weight", pattern=pw.KeepNOfM(2, 4))
    with pytest.raises(ValueError, match=r"\(0.25, 0.5, 0.75\) go beyond 0.5, where KeepNOfM"):
        pw.iterative(work.pruner, (0.25, 0.5, 0.75), work.train)
    assert not work.trained


def test_a_level_below_what_is_pruned_is_refused():
    work = trained(criterion="magnitude")
    work.pruner.prune(0.5)
    before = work.state()
    with pytest.raises(ValueError, match="would bring weights of '0.weight' back"):
        pw.iterative(work.pruner, LEVELS, work.train)
    assert same(work.state(), before)


def test_options_need_something_to_work_on():
    pruner = pw.Pruner(nn.Linear(4, 4), criterion="magnitude")
    with pytest.raises(ValueError, match="Linear has no dropout module"):
        pw.rounds(pruner, LEVELS, dropout=True)
    with pytest.raises(ValueError, match="this Pruner has no optimizer"):
        pw.rounds(pruner, LEVELS, lr=0.1)


STRATEGIES = {
    "iterative": lambda work, train: pw.iterative(work.pruner, LEVELS, train),
    "find": lambda work, train: pw.find_sparsity(work.pruner, train, work.accuracy, budget=9),
    "certify": lambda work, train: pw.certify_sparsity(work.pruner, train, work.losses, error=0.9),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_there_must_be_something_that_trains(strategy):
    work = trained()
    before = work.state()
    with pytest.raises(TypeError, match="train=None: give a function of the round"):
        STRATEGIES[strategy](work, None)
    assert same(work.state(), before)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pruner_that_prunes_by_itself_is_refused(strategy):
    work = trained(schedule=pw.Stairs((0.9,), begin=15))
    before = work.state()
    with pytest.raises(ValueError, match=r"prunes by itself, by schedule=Stairs\(.*set pruner.schedule = None"):
        STRATEGIES[strategy](work, work.train)
    assert same(work.state(), before)
    work.pruner.schedule = None
    STRATEGIES[strategy](work, work.train)
    assert work.trained


def test_a_model_is_no_pruner():
    with pytest.raises(TypeError, match="Linear is no Pruner: give Pruner\\(model, optimizer\\)"):
        pw.rounds(NET, LEVELS)
