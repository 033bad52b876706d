"""Batch means against their literal transcription: store every step, and take means and variances at the end."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.weights import Weight
from prunewald.uncertainty import BatchMeans

LENGTH = 4


def walked(recipe, steps, seed=0):
    """A random walk watched by an estimator: its state, and all the weights it saw; the last never gets a gradient."""
    g = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.randn(6, generator=g))
    state, seen = recipe.init({"w": weight}), []
    for _ in range(steps):
        weight.grad = torch.ones(6)
        weight.grad[-1] = 0
        with torch.no_grad():
            weight += 0.01 * torch.randn(6, generator=g)
        recipe.update_(state, {"w": weight}, None)
        seen.append(weight.detach().clone().double())
    return state, weight, torch.stack(seen)


@pytest.mark.parametrize("steps", [2 * LENGTH, 5 * LENGTH, 5 * LENGTH + 3])
def test_the_standard_error_is_the_formula(steps):
    """SE² = (S t / n) · Var(m_r); steps after the last full batch do not count."""
    recipe = BatchMeans(samples=50, batch_size=5, length=LENGTH)
    state, weight, seen = walked(recipe, steps)
    batches = steps // LENGTH
    means = seen[: batches * LENGTH].view(batches, LENGTH, 6).mean(1)
    sigma, dead = recipe.sigma(state, Weight("w", weight, None), None)
    torch.testing.assert_close(sigma.double(), (5 * LENGTH / 50 * means.var(0)).sqrt(), rtol=1e-4, atol=0)
    assert dead.tolist() == [False] * 5 + [True]
    torch.testing.assert_close(recipe.average(state)["w"].double(), means.mean(0), rtol=1e-6, atol=1e-7)
    assert recipe.degrees(state) == batches - 1


def test_without_samples_sigma_is_the_deviation_of_the_batch_means():
    recipe = BatchMeans(length=LENGTH)
    state, weight, seen = walked(recipe, 5 * LENGTH)
    expected = seen.view(5, LENGTH, 6).mean(1).std(0)
    sigma, _ = recipe.sigma(state, Weight("w", weight, None), None)
    torch.testing.assert_close(sigma.double(), expected, rtol=1e-4, atol=0)
    assert not recipe.standard_error
    assert "BatchMeans" in recipe.caveats()[0]
    assert BatchMeans(samples=50, batch_size=5).standard_error


def test_lengths_compare_batches_with_batches_twice_as_long():
    recipe = BatchMeans(length=LENGTH)
    state, _, seen = walked(recipe, 12 * LENGTH)
    single, double = seen.view(12, LENGTH, 6).mean(1), seen.view(6, 2 * LENGTH, 6).mean(1)
    found = recipe.lengths(state)
    assert found.batches == 12
    assert found.doubling == pytest.approx(float((2 * double.var(0) / single.var(0)).median()), rel=1e-3)
    assert found.doubling > 1.5, "a random walk does not forget in a few steps"


def test_what_a_pruning_needs_to_know():
    recipe = BatchMeans(samples=50, batch_size=5, length=LENGTH)
    assert (recipe.least, recipe.horizon) == (2 * LENGTH, None)
    assert recipe.caveats() == ["tested: the averaged iterate, which the standard errors are of"]
    state, _, _ = walked(recipe, 2 * LENGTH)
    with pytest.warns(UserWarning, match="2 batches"):
        recipe.check(state, {})


def test_a_state_of_other_batches_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = pw.Pruner(model, optimizer, uncertainty=BatchMeans(length=5)).state_dict()
    other = pw.Pruner(model, optimizer, uncertainty=BatchMeans(length=7))
    other.load_state_dict(state)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match=r"batches of 5 steps.*BatchMeans\(.*length=7"):
        optimizer.step()


@pytest.mark.parametrize("settings", [{"samples": 10}, {"samples": 0, "batch_size": 1}, {"length": 1}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        BatchMeans(**settings)


def test_one_batch_is_too_few():
    model = nn.Linear(2, 2)
    pruner = pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1), uncertainty=BatchMeans(length=5))
    with pytest.raises(ValueError, match=r"BatchMeans\(.*length=5\) has 0 batch.*train on"):
        pruner.sigma()
