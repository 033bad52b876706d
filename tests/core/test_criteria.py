import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import prunewald as pw
from prunewald.core.criteria import dead_first
from prunewald.core.patterns import Element
from prunewald.core.ranking import Ranked
from prunewald.core.weights import WeightStats


def stats(weight, sigma=None, dead=None, name="w"):
    return WeightStats(name, weight, None, sigma, dead, lambda group: float(weight.std()))


def mask(criterion, given_, keep):
    return Element()(Ranked(criterion(given_), given_.weight), keep)


def draw(seed, n=200):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=g), torch.rand(n, generator=g) + 1e-3


def test_tau_is_the_formula():
    weight, sigma = torch.tensor([2.0, -3.0]), torch.tensor([0.5, 0.25])
    assert torch.equal(pw.tau(weight, sigma, 0.5), torch.tensor([2.0, 4.0]))


def test_zero_over_zero_is_zero_and_w_over_zero_infinite():
    assert pw.tau(torch.tensor([0.0, 1.0]), torch.zeros(2), 0.0).tolist() == [0.0, math.inf]


def test_tau_leaves_its_inputs_alone():
    weight, sigma = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0])
    pw.tau(weight, sigma, 0.0)
    assert weight.tolist() == [-1.0, 0.0]
    assert sigma.tolist() == [1.0, 0.0]


@given(st.integers(0, 2**31), st.integers(1, 199))
def test_a_large_lambda_gives_exactly_the_mask_of_magnitude(seed, keep):
    weight, sigma = draw(seed)
    given_ = stats(weight, sigma)
    assert torch.equal(mask(pw.MagnitudeUncertainty(lam=1e12), given_, keep), mask(pw.Magnitude(), given_, keep))


@given(st.integers(0, 2**31), st.integers(1, 199))
def test_lambda_zero_is_the_wald_order(seed, keep):
    weight, sigma = draw(seed)
    z = pw.wald_test(weight, sigma).z.abs()
    kept = mask(pw.MagnitudeUncertainty(lam=0.0), stats(weight, sigma), keep)
    assert torch.equal(kept, mask(pw.Wald(), stats(weight, sigma), keep))
    assert z[kept].min() >= z[~kept].max()


@given(st.integers(0, 2**31), st.sampled_from([2.0**-20, 0.125, 1024.0]), st.floats(0, 10))
def test_scaling_a_whole_layer_leaves_the_mask_as_it_is(seed, factor, lam):
    weight, sigma = draw(seed)
    criterion = pw.MagnitudeUncertainty(lam=lam)
    before = mask(criterion, stats(weight, sigma), 60)
    assert torch.equal(before, mask(criterion, stats(weight * factor, sigma * factor), 60))


def test_the_papers_example_of_units():
    """Section IV-B: weights 10 and 0.1; the second input in other units, divided by 1,000, and its weight is 100."""
    factor = torch.tensor([1.0, 1000.0])
    weight, error = torch.tensor([10.0, 0.1]), torch.tensor([1.0, 0.012])
    before, after = stats(weight, error), stats(weight * factor, error * factor)
    assert pw.Magnitude()(before).argmin() != pw.Magnitude()(after).argmin()
    torch.testing.assert_close(pw.Wald()(before), pw.Wald()(after))
    lam = pw.MagnitudeUncertainty(lam=0.01)  # any lambda above 0 looks at the units of a single input
    assert lam(before).argmin() != lam(after).argmin()


def test_dead_weights_go_first_and_by_magnitude():
    weight = torch.tensor([5.0, -3.0, 4.0, 1e-9, 2.0])
    dead = torch.tensor([True, False, True, False, False])
    scores = pw.MagnitudeUncertainty(lam=1.0)(stats(weight, torch.ones(5), dead))
    assert scores.argsort().tolist() == [2, 0, 3, 4, 1]


def test_the_raw_formula_keeps_dead_weights_when_lambda_is_small():
    weight, sigma = torch.tensor([0.01, 1.0, 0.5]), torch.tensor([0.0, 0.1, 0.1])
    dead = sigma == 0
    raw = pw.MagnitudeUncertainty(lam=1e-4, dead="formula")(stats(weight, sigma, dead))
    assert raw.argmax() == 0
    assert pw.MagnitudeUncertainty(lam=1e-4)(stats(weight, sigma, dead)).argmin() == 0


@given(st.lists(st.floats(0, 2.0**127, width=32), min_size=2, max_size=50))
def test_the_scores_of_dead_weights_rise_strictly_with_magnitude(values):
    x = torch.tensor(sorted(set(values)))
    y = dead_first(torch.zeros_like(x), x, torch.ones_like(x, dtype=torch.bool))
    assert (y <= 0).all()
    assert y.isfinite().all()
    assert (y.diff() > 0).all()


def test_the_scores_of_dead_weights_in_double_precision():
    x = torch.tensor([0.0, 1.0, 1.0 + 1e-15, 1e300], dtype=torch.float64)
    y = dead_first(torch.zeros_like(x), x, torch.ones(4, dtype=torch.bool))
    assert (y.diff() > 0).all()
    assert (y <= 0).all()


def test_lambda_is_relative_to_the_named_spread():
    weight, sigma = draw(0)
    asked = []
    given_ = WeightStats("w", weight, None, sigma, None, lambda group: asked.append(group) or 2.0)
    for group in ("layer", "model", "slice", "targets"):
        scores = pw.MagnitudeUncertainty(lam=0.5, relative_to=group)(given_)
        assert torch.equal(scores, pw.tau(weight, sigma, 1.0))
    assert asked == ["layer", "model", "slice", "targets"]
    assert torch.equal(pw.MagnitudeUncertainty(lam=0.5, relative_to=None)(given_), pw.tau(weight, sigma, 0.5))


@pytest.mark.parametrize("relative_to", ["layer", None])
def test_an_infinite_lambda_is_magnitude_whatever_sigma_and_the_dead(relative_to):
    weight, sigma = draw(0)
    criterion = pw.MagnitudeUncertainty(lam=math.inf, relative_to=relative_to)
    assert criterion.simplest == pw.Magnitude()
    assert pw.MagnitudeUncertainty(lam=1e30).simplest == pw.MagnitudeUncertainty(lam=1e30)
    known = WeightStats("w", weight, None, sigma, torch.ones_like(weight, dtype=torch.bool), lambda group: 0.0)
    assert torch.equal(criterion(known), weight.abs())
    assert torch.equal(pw.tau(weight, sigma, math.inf), weight.abs())


def test_random_is_the_same_on_every_run_and_differs_by_tensor_and_seed():
    weight, _ = draw(0)
    first = pw.Random(seed=3)(stats(weight, name="a"))
    assert torch.equal(first, pw.Random(seed=3)(stats(weight, name="a")))
    assert not torch.equal(first, pw.Random(seed=3)(stats(weight, name="b")))
    assert not torch.equal(first, pw.Random(seed=4)(stats(weight, name="a")))


@pytest.mark.parametrize("lam", [-0.1, -math.inf, math.nan])
def test_a_bad_lambda_is_named(lam):
    with pytest.raises(ValueError, match=f"lam={lam}"):
        pw.MagnitudeUncertainty(lam=lam)


def test_bad_choices_are_named():
    with pytest.raises(ValueError, match="dead='last'.*'first', 'formula'"):
        pw.MagnitudeUncertainty(dead="last")
    with pytest.raises(ValueError, match="relative_to='row'.*'slice'"):
        pw.MagnitudeUncertainty(relative_to="row")


def test_a_criterion_without_its_sigma_says_what_to_do():
    with pytest.raises(ValueError, match="'fc.weight' has no uncertainty.*SecondMoment"):
        pw.Wald()(stats(torch.ones(3), name="fc.weight"))
