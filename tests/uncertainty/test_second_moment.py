import pytest
import torch
from torch import nn

import prunewald as pw
from tests.transcriptions import NO_MEAN_SQUARE


def trained(make_optimizer, steps=12, attach_first=True, recipe=None, dead=True):
    """A model after some steps, and the squared gradients it saw."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False))
    optimizer = make_optimizer(model.parameters())
    recipe = recipe or pw.SecondMoment(samples=100, batch_size=8)

    def attach():
        return pw.Pruner(model, optimizer, criterion=pw.Wald(), uncertainty=recipe)

    pruner = attach() if attach_first else None
    squares = []
    for _ in range(steps):
        x = torch.randn(8, 5)
        if dead:
            x[:, 1] = 0
        optimizer.zero_grad()
        model(x).square().sum().backward()
        squares.append(model[0].weight.grad.square().clone())
        optimizer.step()
    return pruner or attach(), squares


def average(squares, decay):
    v = torch.zeros_like(squares[0])
    for square in squares:
        v = decay * v + (1 - decay) * square
    return v / (1 - decay ** len(squares))


EXPONENTIAL = {
    "Adam": (lambda p: torch.optim.Adam(p, betas=(0.9, 0.95)), 0.95),
    "AdamW amsgrad": (lambda p: torch.optim.AdamW(p, amsgrad=True), 0.999),
    "NAdam": (lambda p: torch.optim.NAdam(p), 0.999),
    "RAdam": (lambda p: torch.optim.RAdam(p), 0.999),
    "RMSprop": (lambda p: torch.optim.RMSprop(p), 0.99),
    "RMSprop centred": (lambda p: torch.optim.RMSprop(p, centered=True, alpha=0.9), 0.9),
    "Adadelta": (lambda p: torch.optim.Adadelta(p), 0.9),
}
OWN = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
}


@pytest.mark.parametrize("attach_first", [True, False])
@pytest.mark.parametrize("name", EXPONENTIAL)
def test_the_optimizer_s_own_average_without_its_bias(name, attach_first):
    make, decay = EXPONENTIAL[name]
    pruner, squares = trained(make, attach_first=attach_first)
    expected = 1 / (100 * 8 * average(squares, decay)).sqrt()
    torch.testing.assert_close(pruner.sigma()["0.weight"], expected, rtol=1e-4, atol=0)


def test_adagrad_s_sum_is_a_mean():
    pruner, squares = trained(lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.5))
    expected = 1 / (800 * torch.stack(squares).mean(0)).sqrt()
    alive = squares[0] > 0
    torch.testing.assert_close(pruner.sigma()["0.weight"][alive], expected[alive], rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", OWN)
def test_its_own_average_where_the_optimizer_keeps_none(name):
    pruner, squares = trained(OWN[name], recipe=pw.SecondMoment(samples=100, batch_size=8, decay=0.9))
    expected = 1 / (800 * average(squares, 0.9)).sqrt()
    torch.testing.assert_close(pruner.sigma()["0.weight"], expected, rtol=1e-4, atol=0)


def test_without_samples_the_median_over_living_weights_is_the_spread():
    pruner, _ = trained(torch.optim.RMSprop, 100, recipe=pw.SecondMoment())
    sigma, weight = pruner.sigma()["0.weight"], pruner.model.get_parameter("0.weight").detach()
    living = torch.arange(5).expand(7, 5) != 1
    torch.testing.assert_close(sigma[living].median(), weight.std())
    assert sigma[~living].isinf().all()
    assert torch.equal(pruner.dead()["0.weight"], ~living)


def test_pruned_weights_do_not_count_in_the_median():
    pruner, _ = trained(torch.optim.RMSprop, recipe=pw.SecondMoment(), dead=False)
    pruner.prune(0.5)
    kept = pruner.masks["0.weight"]
    weight = pruner.model.get_parameter("0.weight").detach()
    torch.testing.assert_close(pruner.sigma()["0.weight"][kept].median(), weight[kept].std())


def test_dead_weights_are_pruned_first():
    pruner, _ = trained(torch.optim.Adam)
    pruner.prune({"0": 0.2})
    assert torch.equal(~pruner.masks["0.weight"], torch.arange(5).expand(7, 5) == 1)


def test_no_second_moment_says_what_to_do():
    pruner, _ = trained(OWN["SGD"], attach_first=False)
    with pytest.raises(ValueError, match="'0.weight': SGD.*attach it before training"):
        pruner.prune(0.5)


@pytest.mark.parametrize("kind", NO_MEAN_SQUARE, ids=lambda kind: kind.__name__)
def test_where_the_optimizer_s_state_means_something_else_an_average_is_run_here(kind):
    recipe = pw.SecondMoment(samples=100, batch_size=8, decay=0.9)
    pruner, squares = trained(lambda p: kind(p, lr=1e-3), recipe=recipe, dead=False)
    expected = 1 / (800 * average(squares, 0.9)).sqrt()
    torch.testing.assert_close(pruner.sigma()["0.weight"], expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", NO_MEAN_SQUARE, ids=lambda kind: kind.__name__)
def test_attached_too_late_the_error_names_the_optimizer_and_why(kind):
    pruner, _ = trained(lambda p: kind(p, lr=1e-3), attach_first=False)
    with pytest.raises(ValueError, match=rf"'0.weight': {kind.__name__}.*{NO_MEAN_SQUARE[kind]}.*Magnitude\(\)"):
        pruner.prune(0.5)


@pytest.mark.parametrize(
    "settings", [{"samples": 10}, {"batch_size": 10}, {"samples": 0, "batch_size": 1}, {"decay": 1.0}, {"decay": 0.0}]
)
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        pw.SecondMoment(**settings)
