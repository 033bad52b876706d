"""Statistics run by hand, a log of what they saw, and literal transcriptions of the papers' formulas."""

import pytest
import torch

from prunewald.baselines import OBD, PLATON, Movement, Taylor
from prunewald.baselines.gradients import MeanGradient, SmoothedSensitivity, TotalMovement
from prunewald.baselines.wanda import InputNorm
from prunewald.core.weights import WeightStats
from tests.training import sgd

STEPS = 7
OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: sgd(model, weight_decay=0.1),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "adamw-foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True),
}
STEPPED = {
    "mean": MeanGradient(),
    "square": MeanGradient(squared=True),
    "movement": TotalMovement(),
    "sensitivity": SmoothedSensitivity(0.85, 0.95),
}
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)
each_statistic = pytest.mark.parametrize("statistic", STEPPED.values(), ids=STEPPED)


def matrices(model):
    return {name: p for name, p in model.named_parameters() if p.dim() > 1}


class Watch:
    """A statistic run over an optimizer, and beside it a log of the weights before and the gradients of each step."""

    def __init__(self, statistic, model, optimizer):
        self.statistic, self.weights = statistic, matrices(model)
        self.state = statistic.init(self.weights)
        self.log = {name: [] for name in self.weights}
        optimizer.register_step_pre_hook(self.before)
        optimizer.register_step_post_hook(self.after)

    def before(self, *_):
        self.old = {name: w.detach().clone() for name, w in self.weights.items()}

    def after(self, optimizer, *_):
        self.statistic.update_(self.state, self.weights, optimizer)
        for name, weight in self.weights.items():
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.to_dense()
            self.log[name].append((self.old[name], grad.clone()))

    def value(self, name):
        return self.statistic.value(self.state, name)

    def values(self):
        return {name: self.value(name) for name in self.weights}

    def history(self, name):
        """For each weight: what it is now, what it was before each step, and its gradients."""
        befores = zip(*(w.double().flatten().tolist() for w, _ in self.log[name]), strict=True)
        gradients = zip(*(g.double().flatten().tolist() for _, g in self.log[name]), strict=True)
        return zip(self.weights[name].detach().double().flatten().tolist(), befores, gradients, strict=True)


def score(criterion, weight, *, gradient=None, statistic=None):
    known = WeightStats("w", weight.detach(), None, None, None, lambda group: 1.0, gradient, statistic)
    return criterion(known)


def assert_scores(found, expected, rtol=1e-4):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double().flatten(), expected, rtol=rtol, atol=rtol * float(expected.abs().mean()))


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)


class Inputs:
    """Wanda's statistic on a model, and a state that can be replaced, as the Pruner does."""

    def __init__(self, model, names=None):
        self.statistic = InputNorm()
        self.state = self.statistic.init({})
        self.handles = self.statistic.watch(model, list(names or matrices(model)), lambda: self.state)

    def value(self, name):
        return self.statistic.value(self.state, name)


def literal_taylor(now, befores, gradients):
    return abs(now * sum(gradients) / len(gradients))


def literal_obd(now, befores, gradients):
    return 0.5 * sum(g * g for g in gradients) / len(gradients) * now * now


def literal_movement(now, befores, gradients):
    total = 0.0
    for w, g in zip(befores, gradients, strict=True):
        total -= g * w
    return total


def literal_platon(now, befores, gradients, beta1=0.85, beta2=0.95):
    mean, uncertainty = 0.0, 0.0
    for w, g in zip(befores, gradients, strict=True):
        importance = abs(w * g)
        mean = beta1 * mean + (1 - beta1) * importance
        uncertainty = beta2 * uncertainty + (1 - beta2) * abs(importance - mean)
    return mean * uncertainty


LITERAL = {Taylor(): literal_taylor, OBD(): literal_obd, Movement(): literal_movement, PLATON(): literal_platon}
