"""Every criterion goes with every way to prune and every uncertainty. Parts come from the registry; all is tiny."""

import dataclasses
import inspect
from functools import cache

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald import strategies
from prunewald.core.base import Offline, Online
from prunewald.util.registry import brief, known, make
from tests.training import SMALL, minus_zero_or_worse, net, one_step

CRITERIA = {name: make("criterion", name) for name in sorted(known("criterion"))}
ESTIMATORS = {name: make("uncertainty", name) for name in sorted(known("uncertainty"))}
ONLINE = [name for name, part in ESTIMATORS.items() if isinstance(part, Online)]
OFFLINE = [name for name, part in ESTIMATORS.items() if isinstance(part, Offline)]
SIGMA = [name for name, part in CRITERIA.items() if part.uses_sigma]
LEVEL = 0.7

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of"),
]


class Training:
    """A model of two layers, or one, and the steps it has taken."""

    def __init__(self, layers=2):
        torch.manual_seed(0)
        self.model = (net() if layers == 2 else nn.Sequential(nn.Linear(6, 4))).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.taken = 0

    def steps(self, count):
        for _ in range(count):
            one_step(self.model, self.optimizer, self.taken)
            self.taken += 1

    def sigmas(self):
        generator = torch.Generator().manual_seed(1)
        return {n: torch.rand(p.shape, generator=generator) for n, p in self.model.named_parameters()}


def one_shot(training, **choice):
    pruner = pw.Pruner(training.model, training.optimizer, scope="layer", **choice)
    training.steps(12)
    pruner.prune(LEVEL)
    return pruner


def iterative(training, estimate=None, **choice):
    pruner = pw.Pruner(training.model, training.optimizer, scope="layer", **choice)
    training.steps(12)
    offline = None if estimate is None else lambda: estimate(pruner.masks)
    strategies.iterative(pruner, (0.4, LEVEL), lambda one: training.steps(12), estimate=offline)
    return pruner


def gradual(training, **choice):
    schedule = pw.Cubic(LEVEL, begin=6, end=18, every=3)
    pruner = pw.Pruner(training.model, training.optimizer, scope="layer", schedule=schedule, **choice)
    training.steps(20)
    return pruner


def surgery(training, **choice):
    pruner = pw.Surgery(training.model, training.optimizer, sparsity=LEVEL, scope="layer", every=6, gamma=0.0, **choice)
    training.steps(20)
    assert abs(pruner.sparsity - LEVEL) < 0.15
    pruner.prune(LEVEL)
    return pruner


STRATEGIES = {run.__name__: run for run in (one_shot, iterative, gradual, surgery)}


def outcome(strategy, criterion, uncertainty, training, **options):
    """The masks, after a check that they are what was asked for, and hold."""
    pruner = STRATEGIES[strategy](training, criterion=criterion, uncertainty=uncertainty, **options)
    assert f"by {brief(CRITERIA[criterion])}" in str(pruner.report)
    assert ("sigma from" in str(pruner.report)) == CRITERIA[criterion].uses_sigma
    masks = pruner.masks
    for mask in masks.values():
        assert int(mask.sum()) == mask.numel() - round(LEVEL * mask.numel())
    training.steps(4)
    for name, mask in pruner.masks.items():
        assert torch.equal(mask, masks[name])
        assert not minus_zero_or_worse(training.model.get_parameter(name), ~mask)
        assert (training.model.get_parameter(name)[mask] != 0).all()
    return masks


@cache
def found(strategy, criterion, uncertainty):
    training = Training()
    given = training.sigmas() if uncertainty == "dict" else SMALL.get(uncertainty, uncertainty)
    return outcome(strategy, criterion, given, training)


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("uncertainty", [*ONLINE, "dict"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("criterion", SIGMA)
def test_a_criterion_with_sigma(criterion, strategy, uncertainty):
    masks = found(strategy, criterion, uncertainty)
    assert same(found.__wrapped__(strategy, criterion, uncertainty), masks), "a second run gives the same"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("criterion", [name for name in CRITERIA if name not in SIGMA])
def test_a_criterion_without_sigma(criterion, strategy):
    masks = found(strategy, criterion, None)
    assert same(found.__wrapped__(strategy, criterion, None), masks), "a second run gives the same"
    assert same(found(strategy, criterion, ONLINE[0]), masks), "sigma does not count"


def offline(name):
    """An estimator that can do with what a tiny training gives, and the training."""
    part = ESTIMATORS[name]
    fields = {field.name for field in dataclasses.fields(part)}
    if "inverse" in fields:
        part = dataclasses.replace(part, inverse="damped")
    if "rate" in fields:  # the Hessian of two layers is singular
        return dataclasses.replace(part, rate=4.0), Training(layers=1)
    return part, Training()


@pytest.mark.parametrize("uncertainty", OFFLINE)
@pytest.mark.parametrize("strategy", ["one_shot", "iterative"])
@pytest.mark.parametrize("criterion", SIGMA)
def test_a_criterion_with_sigma_from_data(criterion, strategy, uncertainty):
    def run():
        estimator, training = offline(uncertainty)
        x = 3 * torch.randn(96, 6, generator=torch.Generator().manual_seed(2)).double()
        with torch.no_grad():
            y = training.model(x) + x[:, :1].square()

        def estimate(masks=None):
            # The bootstrap trains anew, and knows of no masks.
            known = "masks" in inspect.signature(estimator.estimate).parameters
            options = {"masks": masks} if known else {}
            return estimator.estimate(training.model, [(x, y)], nn.functional.mse_loss, **options)

        if strategy == "one_shot":
            return outcome(strategy, criterion, estimate(), training)
        return outcome(strategy, criterion, None, training, estimate=estimate)

    assert same(run(), run())
