"""Every criterion, every estimator, slices of parameters; and what is refused."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.util.registry import known
from tests.strategies.surgery_helpers import adam, running
from tests.training import assert_zeros, hooks_on, net, one_step, sgd, train

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]

ESTIMATES: dict[str, Any] = {
    "rolling": pw.PseudoBootstrap(last=6),
    "every": pw.PseudoBootstrap(every=3),
    "second-moment": pw.SecondMoment(),
    "batch-means": pw.BatchMeans(length=3),
    "dict": {"0.weight": torch.rand(8, 6), "2.weight": torch.rand(4, 8)},
    "none": None,
}


@pytest.mark.parametrize(("uncertainty", "scope"), [*zip(ESTIMATES, ["layer", "global", "row"] * 2, strict=True)])
@pytest.mark.parametrize("criterion", sorted(known("criterion")))
def test_every_criterion_operates_by_every_estimator(criterion, uncertainty, scope):
    model, _, surgery = running(9, adam, criterion=criterion, uncertainty=ESTIMATES[uncertainty], scope=scope)
    assert_zeros(model, surgery.masks)
    assert 0.2 < surgery.sparsity < 0.8
    surgery.prune(0.5)
    assert surgery.sparsity == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_the_default_criterion(make_optimizer):
    model, _, surgery = running(14, make_optimizer, criterion=None)
    assert_zeros(model, surgery.masks)
    assert surgery.prune(0.6).criterion == ("Magnitude()" if make_optimizer is sgd else "MagnitudeUncertainty()")


@pytest.mark.parametrize(("uncertainty", "first"), [(pw.PseudoBootstrap(every=3), 6), (pw.BatchMeans(length=2), 4)])
def test_operations_begin_when_the_estimator_can_tell(uncertainty, first):
    model, optimizer, surgery = running(0, uncertainty=uncertainty, criterion="wald")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, first + 3):
            one_step(model, optimizer, step)
            assert (surgery.sparsity > 0) == (step >= first)


def test_an_estimator_that_is_not_asked_need_not_be_ready():
    _, _, surgery = running(1, uncertainty="batch-means")
    assert surgery.sparsity > 0


def test_a_layer_without_a_gradient_is_waited_for():
    model = net()
    nn.init.zeros_(model[2].weight)
    optimizer = adam(model)
    surgery = pw.Surgery(model, optimizer, sparsity=0.6, gamma=0.0)
    with pytest.warns(UserWarning, match="waits, at step 1.*'0.weight'"):
        one_step(model, optimizer, 0)
    train(model, optimizer, 3, first=1)
    assert_zeros(model, surgery.masks)


def test_slices_of_a_parameter():
    model = net()
    optimizer = sgd(model)
    rows = ["0.weight[0]", "0.weight[1]"]
    pw.Surgery(model, optimizer, sparsity=0.5, criterion="magnitude", scope="row", targets=rows, gamma=0.0, margin=0.0)
    train(model, optimizer, 5)
    assert (model[0].weight == 0).sum(1).tolist() == [3, 3, 0, 0, 0, 0, 0, 0]


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "sparsity=None, threshold=None"),
        ({"sparsity": 0.5, "threshold": 0.1}, "sparsity=0.5, threshold=0.1"),
        ({"sparsity": 1.0}, "sparsity=1.0"),
        ({"sparsity": {"0.weight": -1}}, "'0.weight'=-1"),
        ({"sparsity": {"7.weight": 0.5}}, "sparsity for '7.weight'"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"threshold": {"0.weight": "high"}}, "threshold for '0.weight'='high'"),
        ({"threshold": {"7.weight": 0.5}}, "threshold for '7.weight'"),
        ({"sparsity": 0.5, "margin": -0.1}, "margin=-0.1"),
        ({"sparsity": 0.5, "margin": 1}, "margin=1:.*below 1"),
        ({"sparsity": 0.5, "every": 0}, "every=0:.*at least 1"),
        ({"sparsity": 0.5, "every": 1.5}, "every=1.5"),
        ({"sparsity": 0.5, "gamma": -1e-4}, "gamma=-0.0001"),
        ({"sparsity": 0.5, "gamma": float("nan")}, "gamma=nan"),
        ({"sparsity": 0.5, "power": "1"}, "power='1'"),
        ({"sparsity": 0.5, "stop": -1}, "stop=-1"),
        ({"sparsity": 0.5, "seed": 0.5}, "seed=0.5"),
        ({"sparsity": 0.5, "uncertainty": pw.PseudoBootstrap(last=3, total_steps=9)}, r"PseudoBootstrap\(last=3"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_attached(options, message):
    model = net()
    optimizer = sgd(model)
    with pytest.raises(ValueError, match=message):
        pw.Surgery(model, optimizer, **options)
    assert hooks_on(model, optimizer) == 0
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("optimizer", [None, []])
def test_it_needs_an_optimizer(optimizer):
    with pytest.raises(ValueError, match="needs the optimizer"):
        pw.Surgery(net(), optimizer, sparsity=0.5)
