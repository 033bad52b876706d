"""Learn then Test: the numbers, and what they promise."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from prunewald.statistics import drop_losses, exact_binomial, fixed_sequence, hoeffding_bentkus

LIMITS, SIZES = [0.02, 0.1, 0.5, 0.9], [1, 20, 300]


def literal(mean, n, a):
    """The formula of Angelopoulos et al. (2021), as it stands there."""

    def h1(x, y):
        left = 0.0 if x == 0 else x * math.log(x / y)
        return left + (0.0 if x == 1 else (1 - x) * math.log((1 - x) / (1 - y)))

    tail = sum(stats.binom.pmf(k, n, a) for k in range(math.ceil(round(n * mean, 9)) + 1))
    return min(math.exp(-n * h1(min(mean, a), a)), math.e * tail, 1.0)


def coins(ones, n):
    return (torch.arange(n) < ones).float()


def margin(delta, draws):
    return 3 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("limit", LIMITS)
def test_it_is_the_formula(n, limit):
    for ones in {0, 1, n // 10, n // 2, n}:
        assert hoeffding_bentkus(coins(ones, n), limit) == pytest.approx(literal(ones / n, n, limit), rel=1e-9)
    spread = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    assert hoeffding_bentkus(spread, limit) == pytest.approx(literal(float(spread.mean()), n, limit), rel=1e-9)


def test_both_bounds_are_at_work():
    """Hoeffding's is the smaller one far from the limit, Bentkus's close to it."""
    hoeffding = math.exp(-100 * (math.log(1 / 0.9)))
    assert hoeffding_bentkus(coins(0, 100), 0.1) == pytest.approx(hoeffding)
    near = math.e * stats.binom.cdf(9, 300, 0.08)
    assert hoeffding_bentkus(coins(9, 300), 0.08) == pytest.approx(near)


def test_a_count_that_floating_point_would_push_up_by_one():
    assert 0.07 * 100 > 7
    assert hoeffding_bentkus(coins(7, 100), 0.1) == pytest.approx(math.e * stats.binom.cdf(7, 100, 0.1))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("limit", LIMITS)
def test_at_the_limit_a_small_p_is_as_rare_as_it_says_for_coins(n, limit):
    """No simulation: every count, with its probability."""
    p = np.array([hoeffding_bentkus(coins(ones, n), limit) for ones in range(n + 1)])
    chance = stats.binom.pmf(np.arange(n + 1), n, limit)
    for delta in (0.01, 0.05, 0.1, 0.3, 0.9):
        assert chance[p <= delta].sum() <= delta + 1e-12


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("limit", LIMITS)
def test_the_exact_binomial_is_one_and_never_above_the_bound(n, limit):
    p = np.array([exact_binomial(coins(ones, n), limit) for ones in range(n + 1)])
    chance = stats.binom.pmf(np.arange(n + 1), n, limit)
    assert p == pytest.approx(np.cumsum(chance), abs=1e-12)
    assert all(p[ones] <= hoeffding_bentkus(coins(ones, n), limit) + 1e-12 for ones in range(n + 1))
    for delta in (0.01, 0.05, 0.1, 0.3, 0.9):
        assert chance[p <= delta].sum() <= delta + 1e-12


@pytest.mark.parametrize(("n", "limit"), [(300, 0.1), (500, 0.05), (1000, 0.05)])
def test_the_exact_binomial_spends_most_of_its_level_and_the_bound_a_third(n, limit):
    """The chance of p <= 0.05 at the limit, from every count and its probability."""
    chance = stats.binom.pmf(np.arange(n + 1), n, limit)
    sizes = [
        chance[[test(coins(ones, n), limit) <= 0.05 for ones in range(n + 1)]].sum()
        for test in (exact_binomial, hoeffding_bentkus)
    ]
    assert 0.03 < sizes[0] <= 0.05
    assert sizes[1] < 0.4 * sizes[0]


def test_the_exact_binomial_knows_only_right_and_wrong():
    assert exact_binomial(torch.tensor([True, False, False]), 0.5) == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"hold 0.25 at index 2, .*betting"):
        exact_binomial(torch.tensor([0.0, 1.0, 0.25]), 0.1)


DRAWN = {
    "smooth": lambda rng, limit, size: rng.beta(2 * limit, 2 * (1 - limit), size),
    "peaked": lambda rng, limit, size: rng.beta(50 * limit, 50 * (1 - limit), size),
    "mostly one half": lambda rng, limit, size: np.clip(
        limit + rng.choice([0, -1, 1], size, p=[0.9, 0.05, 0.05]) * min(limit, 1 - limit), 0, 1
    ),
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(("n", "limit"), [(20, 0.1), (100, 0.5), (300, 0.05)])
def test_at_the_limit_a_small_p_is_as_rare_as_it_says(kind, n, limit):
    draws = 1000
    losses = torch.from_numpy(DRAWN[kind](np.random.default_rng(0), limit, (draws, n)))
    assert float(losses.mean()) == pytest.approx(limit, rel=0.03)
    p = np.array([hoeffding_bentkus(row, limit) for row in losses])
    for delta in (0.05, 0.2):
        assert (p <= delta).mean() <= delta + margin(delta, draws)


def chosen(losses, limit, delta):
    return fixed_sequence([hoeffding_bentkus(row, limit) for row in losses], delta)


@pytest.mark.parametrize("risks", [[0.03, 0.07, 0.0999, 0.1001, 0.12, 0.3], [0.101, 0.05], [0.05, 0.11, 0.02]])
def test_the_choice_breaks_its_limit_no_more_often_than_delta(risks):
    """Candidates share the examples, so their losses go together; the third order is not even monotone."""
    limit, delta, n, draws = 0.1, 0.1, 400, 600
    uniform = torch.rand(draws, n, generator=torch.Generator().manual_seed(1))
    picks = [chosen([u < risk for risk in risks], limit, delta) for u in uniform]
    wrong = sum(pick is not None and any(risk > limit for risk in risks[: pick + 1]) for pick in picks)
    assert wrong / draws <= delta + margin(delta, draws)
    if risks[0] < 0.05:  # and it is not vacuous: three percent is found good, and seven more often than not
        assert sum(pick is not None for pick in picks) > 0.99 * draws
        assert sum(pick is not None and pick >= 1 for pick in picks) > 0.4 * draws


def test_the_choice_by_drop_breaks_its_budget_no_more_often_than_delta():
    """The dense model errs on 10 %; a candidate loses `broken` of the others and mends `mended` of those."""
    budget, delta, n, draws = 0.05, 0.1, 3000, 400
    candidates = [(0.001, 0.01), (0.02, 0.1), (0.06, 0.02), (0.08, 0.1), (0.2, 0.0)]
    drops = [0.9 * broken - 0.1 * mended for broken, mended in candidates]
    assert [drop > budget for drop in drops] == [False, False, True, True, True]
    generator = torch.Generator().manual_seed(2)
    wrong = passed = 0
    for _ in range(draws):
        dense, u = torch.rand(n, generator=generator) < 0.1, torch.rand(n, generator=generator)
        after = [torch.where(dense, u >= mended, u < broken) for broken, mended in candidates]
        losses = [drop_losses(pruned, dense) for pruned in after]
        pick = chosen(losses, (budget + 1) / 2, delta)
        wrong += pick is not None and drops[pick] > budget
        passed += pick is not None
    assert wrong / draws <= delta + margin(delta, draws)
    assert passed > 0.95 * draws


def test_drops_are_paired_and_lie_between_0_and_1():
    pruned, dense = torch.tensor([1.0, 0.0, 0.0, 0.25]), torch.tensor([0.0, 0.0, 1.0, 0.5])
    assert drop_losses(pruned, dense).tolist() == [1.0, 0.5, 0.0, 0.375]
    assert drop_losses(pruned > 0.5, dense > 0.7).tolist() == [1.0, 0.5, 0.0, 0.5]


def test_the_sequence_stops_at_the_first_that_fails():
    assert fixed_sequence([0.01, 0.05, 0.06, 0.0], 0.05) == 1
    assert fixed_sequence([0.06, 0.0], 0.05) is None
    assert fixed_sequence(torch.tensor([0.0, 0.0]), 0.05) == 1
    later = iter([0.0, 0.06, 0.0])
    assert fixed_sequence(later, 0.05) == 0
    assert list(later) == [0.0], "what comes after the first failure is not even asked for"


@pytest.mark.parametrize("limit", [0, 1, -0.1, 1.5, math.nan])
def test_a_limit_that_is_none(limit):
    for test in (hoeffding_bentkus, exact_binomial):
        with pytest.raises(ValueError, match=rf"limit={limit}: .*above 0 and below 1"):
            test(torch.zeros(3), limit)


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([], r"have shape \(0,\): give"),
        ([[0.0, 1.0]], r"have shape \(1, 2\): give"),
        (0.5, r"have shape \(\): give"),
        ([0.0, 1.5], r"hold 1.5 at index 1: give"),
        ([-0.5, 0.0], r"hold -0.5 at index 0"),
        ([0.0, 0.0, math.nan], r"hold nan at index 2"),
    ],
)
def test_losses_that_are_none(losses, reason):
    given = torch.tensor(losses)
    for test in (hoeffding_bentkus, exact_binomial):
        with pytest.raises(ValueError, match=f"the losses {reason}"):
            test(given, 0.1)
    with pytest.raises(ValueError, match=f"the losses of the pruned model {reason}"):
        drop_losses(given, torch.zeros(3))
    with pytest.raises(ValueError, match=f"the losses of the dense model {reason}"):
        drop_losses(torch.zeros(3), given)


def test_losses_of_other_examples():
    with pytest.raises(ValueError, match="3 losses .* 2 of .*: give both"):
        drop_losses(torch.zeros(3), torch.zeros(2))


@pytest.mark.parametrize("delta", [0, 1, -0.1, math.nan])
def test_a_delta_that_is_none(delta):
    with pytest.raises(ValueError, match=rf"delta={delta}: .*above 0 and below 1"):
        fixed_sequence([0.1], delta)


@pytest.mark.parametrize(
    ("p", "reason"), [([], "no p-values"), ([0.0, math.nan], r"p_values\[1\]=nan"), ([2.0], r"\[0\]=2.0")]
)
def test_p_values_that_are_none(p, reason):
    with pytest.raises(ValueError, match=reason):
        fixed_sequence(p, 0.1)
