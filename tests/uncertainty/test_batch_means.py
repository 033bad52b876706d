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
    state, seen = recipe.init_marked({"w": weight}), []
    for _ in range(steps):
        weight.grad = torch.ones(6)
        weight.grad[-1] = 0
        with torch.no_grad():
            weight += 0.01 * torch.randn(6, generator=g)
        recipe.update_(state, {"w": weight}, None)
        seen.append(weight.detach().clone().double())
    return state, weight, torch.stack(seen)


def transcribed(means, samples, batch_size):
    """(S / n + 1 / T) · V, V the larger of V_t and 2 V_2t - V_t; pairs of batches have a variance from four on."""
    batches = len(means)
    long_run = LENGTH * means.var(0)
    if batches >= 4:
        pairs = means[: batches // 2 * 2].view(batches // 2, 2, 6).mean(1)
        long_run = torch.maximum(2 * (2 * LENGTH * pairs.var(0)) - long_run, long_run)
    return ((batch_size / samples + 1 / (batches * LENGTH)) * long_run).sqrt()


@pytest.mark.parametrize("steps", [2 * LENGTH, 5 * LENGTH, 12 * LENGTH, 12 * LENGTH + 3])
def test_the_standard_error_is_the_formula(steps):
    """Steps after the last full batch do not count."""
    recipe = BatchMeans(samples=50, batch_size=5, length=LENGTH)
    state, weight, seen = walked(recipe, steps)
    batches = steps // LENGTH
    means = seen[: batches * LENGTH].view(batches, LENGTH, 6).mean(1)
    sigma, dead = recipe.sigma(state, Weight("w", weight, None), None)
    torch.testing.assert_close(sigma.double(), transcribed(means, 50, 5), rtol=1e-4, atol=0)
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
    assert found.doubling == pytest.approx(float((2 * double.var(0) / single.var(0)).mean()), rel=1e-3)
    assert found.doubling > 1.5, "a random walk does not forget in a few steps"


def forgetting(length, batches, keep, weights=2000, centre=100.0, units=1.0):
    """Autoregressions that keep a share of their last value, watched: the estimator, its state, and the weights."""
    g = torch.Generator().manual_seed(0)
    recipe = BatchMeans(samples=4 * length * batches, batch_size=4, length=length)  # one epoch
    weight = nn.Parameter((centre + torch.randn(weights, generator=g) / (1 - keep**2) ** 0.5) * units)
    weight.grad = torch.ones(weights)
    state = recipe.init({"w": weight})
    for _ in range(length * batches):
        with torch.no_grad():
            weight.mul_(keep).add_((torch.randn(weights, generator=g) + (1 - keep) * centre) * units)
        recipe.update_(state, {"w": weight}, None)
    return recipe, state, weight


@pytest.mark.parametrize(("keep", "ratio"), [(0.0, 1.0), (0.5, 1.0), (0.75, 1.0), (0.8, 0.96)])
def test_lugsail_finds_the_long_run_variance_of_batches_that_are_not_quite_independent(keep, ratio):
    """V is 1 / (1 - keep)²: with batches of 10 steps the plain variance of their means misses up to 40 % of it."""
    recipe, state, weight = forgetting(10, 40, keep)
    sigma, _ = recipe.sigma(state, Weight("w", weight, None), None)
    true = (2 / 400) ** 0.5 / (1 - keep)  # after one epoch the average and the optimum vary alike, hence the 2
    assert float(sigma.square().mean().sqrt() / true) == pytest.approx(ratio, abs=0.1)


def test_a_warning_comes_before_intervals_cover_too_little():
    recipe, state, _ = forgetting(10, 20, 0.75)
    assert recipe.lengths(state).doubling < 1.27
    recipe.check(state, {})
    recipe, state, _ = forgetting(10, 20, 0.85)
    assert 1.27 < recipe.lengths(state).doubling < 1.5, "what once passed in silence"
    with pytest.warns(UserWarning, match=r"batches of 10 steps.*length=20"):
        recipe.check(state, {})


@pytest.mark.parametrize("units", [1.0, 10.0 ** torch.arange(2000).remainder(9).sub(4)], ids=["one unit", "many"])
@pytest.mark.parametrize("centre", [10.0, 3.0])
def test_a_warning_comes_where_weights_swing_too_far_for_their_average_to_be_an_optimum(centre, units):
    recipe, state, weight = forgetting(20, 20, 0.5, centre=centre, units=units)
    swing, sigma = 1 / (1 - 0.5**2), recipe.sigma(state, Weight("w", weight, None), None).sigma / units
    error = float(sigma.square().mean().sqrt()) * (19 / 17) ** 0.5
    assert recipe.offset(state) == pytest.approx(swing / centre / error, rel=0.02)
    if centre > 5:
        recipe.check(state, {})
        return
    with pytest.warns(UserWarning, match=r"curved loss.* off the optimum: halve the step size"):
        recipe.check(state, {})


@pytest.mark.parametrize(("batches", "samples", "known"), [(3, 50, False), (4, 50, True), (9, None, False)])
def test_how_far_the_average_is_off_takes_standard_errors_of_four_batches(batches, samples, known):
    recipe = BatchMeans(samples=samples, batch_size=samples and 5, length=LENGTH)
    state, _, _ = walked(recipe, batches * LENGTH)
    assert (recipe.offset(state) > 0) == known


def test_shuffled_epochs_are_noticed():
    """Steps that add up to nothing over an epoch: the longer the batches, the less is left of the noise."""
    recipe = BatchMeans(samples=40, batch_size=4, length=10)  # a batch is an epoch
    g = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(500))
    weight.grad = torch.ones(500)
    state = recipe.init({"w": weight})
    for _ in range(20):
        steps = torch.randn(10, 500, generator=g)
        for step in steps - steps.mean(0):
            with torch.no_grad():
                weight.mul_(0.5).add_(step)
            recipe.update_(state, {"w": weight}, None)
    with pytest.warns(UserWarning, match=r"batches of 10 steps.*replacement=True"):
        recipe.check(state, {})


def test_what_a_pruning_needs_to_know():
    recipe = BatchMeans(samples=50, batch_size=5, length=LENGTH)
    assert (recipe.least, recipe.horizon) == (2 * LENGTH, None)
    (note,) = recipe.caveats()
    assert note.startswith("tested: the averaged iterate")
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
