"""Betting p-values: the formula, that they are p-values, and what they are good for."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.data import embedded, scaled
from prunewald.statistics import betting, drop_losses, fixed_sequence, hoeffding_bentkus
from prunewald.statistics.capital import LARGEST, ORDERS, _log_capital

pytestmark = pytest.mark.usefixtures("one_thread")
LIMITS = [0.02, 0.1, 0.51, 0.9]


def literal(losses, m, alpha):
    """The capital K-(m) of Waudby-Smith & Ramdas (2023), with their plug-in bets for a fixed n, one example a time."""
    n, capital, total, squares = len(losses), 1.0, 0.0, 0.0
    variance = 1 / 4
    for t, x in enumerate(losses, 1):
        bet = min(math.sqrt(2 * math.log(1 / alpha) / (n * variance)), LARGEST / (1 - m))
        capital *= 1 - bet * (x - m)
        total += x
        mean = (1 / 2 + total) / (t + 1)
        squares += (x - mean) ** 2
        variance = (1 / 4 + squares) / (t + 1)
    return capital


def drawn_orders(n):
    generator = torch.Generator().manual_seed(0)
    return [torch.randperm(n, generator=generator) for _ in range(ORDERS)]


def changes(u, broken, mended):
    """Drops of 1, -1 and 0, as losses between 0 and 1, from uniform numbers."""
    return torch.where(u < broken, 1.0, torch.where(u < broken + mended, 0.0, 0.5)).double()


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("delta", [0.01, 0.3])
def test_it_is_the_formula_averaged_over_orders(n, limit, delta):
    for losses in (uniform(n), uniform(n, seed=1).round(), uniform(n, seed=2) * limit):
        capital = sum(literal(losses[order].tolist(), limit, delta) for order in drawn_orders(n)) / ORDERS
        assert betting(losses, limit, delta) == pytest.approx(min(1.0, 1 / capital), rel=1e-9)


@pytest.mark.parametrize("delta", [0.001, 0.05, 0.5])
@pytest.mark.parametrize(
    ("values", "chances"),
    [
        ([0.0, 0.5, 1.0], [0.01, 0.96, 0.03]),
        ([0.0, 0.5, 1.0], [0.3, 0.3, 0.4]),
        ([0.0, 1.0], [0.9, 0.1]),
        ([0.5, 1.0], [0.96, 0.04]),
        ([0.2, 0.3, 0.9], [0.5, 0.4, 0.1]),
    ],
)
def test_nobody_gets_rich_at_the_limit(values, chances, delta):
    """No simulation: over every sequence of six losses the mean capital is the 1 it began with, and less above."""
    limit = float(np.dot(values, chances))
    sequences = list(itertools.product(range(len(values)), repeat=6))
    chance = [math.prod(chances[at] for at in sequence) for sequence in sequences]
    losses = torch.tensor(values, dtype=torch.float64)[torch.tensor(sequences)]
    for m, most in ((limit, 1 + 1e-12), (0.9 * limit, 1 - 1e-4)):
        capital = sum(share * math.exp(_log_capital(row, m, delta)) for share, row in zip(chance, losses, strict=True))
        assert capital <= most
        assert m != limit or capital == pytest.approx(1, abs=1e-9)


DRAWN = {  # numbers with the mean 0.51, a drop of 0.02
    "few change": lambda u: changes(u, 0.03, 0.01),
    "many change": lambda u: changes(u, 0.16, 0.14),
    "only broken": lambda u: changes(u, 0.02, 0.0),
    "smooth": lambda u: 0.02 + 0.98 * u,
    "narrow": lambda u: 0.505 + 0.01 * u,
    "one large loss in a while": lambda u: torch.where(u < 0.03, 0.99, 0.51 - 0.48 * 0.03 / 0.97),
}


def too_often(p, delta):
    """The share of p-values of at most delta, less what is delta and three standard errors of the simulation."""
    return float((np.asarray(p) <= delta).mean()) - delta - 3 * math.sqrt(delta * (1 - delta) / len(p))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("n", [40, 400])
def test_at_the_limit_a_small_p_is_as_rare_as_it_says(kind, n):
    assert float(DRAWN[kind](uniform(1_000_000)).mean()) == pytest.approx(0.51, abs=1e-3)
    p = [betting(row, 0.51) for row in DRAWN[kind](uniform(1000, n, seed=n))]
    assert all(too_often(p, delta) <= 0 for delta in (0.01, 0.05, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize("descending", [False, True])
def test_examples_that_lie_in_some_order_do_no_harm(descending):
    """A data set may be sorted, by class or by difficulty."""
    losses = changes(uniform(600, 400), 0.16, 0.14).sort(dim=1, descending=descending).values
    assert too_often([betting(row, 0.51) for row in losses], 0.05) <= 0
    if not descending:  # guards the test: in this order, bets on the examples as they lie would win far too often
        assert too_often([math.exp(-_log_capital(row, 0.51, 0.05)) for row in losses], 0.05) > 0.3


def real_losses():
    """Of 2,000 images, by a network and by the same at 80 % sparsity: 0 or 1, and one less the label's probability."""
    data = embedded()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train, test = scaled(data.train), scaled(data.test)
    for rows in torch.randperm(len(train.y)).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train.x[rows]), train.y[rows]).backward()
        optimizer.step()

    @torch.no_grad()
    def losses():
        scores = model(test.x)
        return (scores.argmax(1) != test.y).double(), 1 - scores.softmax(1).double()[range(len(test.y)), test.y]

    dense = losses()
    pw.Pruner(model, criterion="magnitude").prune(0.8)
    return dict(zip(("0/1", "probability"), zip(dense, losses(), strict=True), strict=True))


@pytest.mark.slow
def test_at_the_limit_of_real_losses_a_small_p_is_as_rare_as_it_says():
    """The images are the population, so that its drop and error are known, and are the limits; samples are drawn."""
    rows = torch.randint(2000, (1000, 300), generator=torch.Generator().manual_seed(0))
    for kind, (dense, pruned) in real_losses().items():
        drop = drop_losses(pruned, dense)
        assert float((drop != 0.5).double().mean()) > 0, "pruning changes something"
        for losses in (drop, pruned):
            p = [betting(row, float(losses.mean())) for row in losses[rows]]
            assert max(too_often(p, delta) for delta in (0.01, 0.05, 0.2)) <= 0, kind


@pytest.mark.slow
def test_the_choice_by_drop_breaks_its_budget_no_more_often_than_delta():
    """Five candidates on the same 500 examples; the third and later ones are over the budget of 0.05."""
    candidates, delta, draws = [(0.001, 0.001), (0.02, 0.01), (0.0501, 0.0), (0.12, 0.06), (0.2, 0.0)], 0.1, 500
    wrong = passed = 0
    for u in uniform(draws, 500):
        pick = fixed_sequence((betting(changes(u, *one), 1.05 / 2, delta) for one in candidates), delta)
        wrong += pick is not None and pick >= 2
        passed += pick is not None
    assert wrong / draws <= delta + 3 * math.sqrt(delta * (1 - delta) / draws)
    assert passed > 0.95 * draws


def test_a_few_hundred_examples_are_enough_where_few_change():
    """A drop of 0.02 where one example in a hundred changes; knowing the mean only, 500 examples show nothing."""
    losses = changes(uniform(100, 500), 0.005, 0.005)
    assert sum(betting(row, 0.51) <= 0.05 for row in losses) > 75
    assert min(hoeffding_bentkus(row, 0.51) for row in losses) > 0.3


def test_without_any_change_the_number_of_examples_is_known():
    at_most = [n for n in range(150, 250) if betting(torch.full((n,), 0.5), 0.51) <= 0.05]
    assert at_most == list(range(204, 250))
    assert hoeffding_bentkus(torch.full((7000,), 0.5), 0.51) > 0.05


def test_the_order_matters_little_and_other_random_numbers_not_at_all():
    losses = changes(uniform(2000), 0.02, 0.02)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    p = [betting(losses[torch.randperm(2000, generator=torch.Generator().manual_seed(at))], 0.51) for at in range(20)]
    assert torch.equal(torch.get_rng_state(), before)
    assert np.log(p).std() < 0.25
    assert betting(losses, 0.51) == betting(losses, 0.51)


def test_overwhelming_evidence_is_a_number():
    assert betting(torch.zeros(20_000), 0.5) == 0.0
    assert betting(torch.ones(20_000), 0.5) == 1.0


@pytest.mark.parametrize(
    ("losses", "options", "reason"),
    [
        ([0.0, 1.5], {}, "the losses hold 1.5 at index 1"),
        ([], {}, r"shape \(0,\)"),
        ([0.0], {"limit": 1.0}, "limit=1.0: .*above 0 and below 1"),
        ([0.0], {"delta": 0.0}, "delta=0.0: .*above 0 and below 1"),
    ],
)
def test_what_cannot_be_tested(losses, options, reason):
    with pytest.raises(ValueError, match=reason):
        betting(torch.tensor(losses), **{"limit": 0.5} | options)
