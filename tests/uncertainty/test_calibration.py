"""Which uncertainties are standard errors: coverage and false discoveries on logistic regressions with known zeros."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.statistics.wald import discoveries, p_value
from prunewald.uncertainty import BatchMeans, FisherDiagonal, InverseFisher

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

RUNS, N, P, S, T = 40, 1000, 20, 10, 400
TRUE = torch.where(torch.arange(P) % 2 == 0, 0.0, 0.35)


class Regressions(nn.Module):
    """Many logistic regressions at once, a row each: the rows never meet."""

    def __init__(self, runs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(runs, P))

    def forward(self, x):
        return (x * self.weight[:, None]).sum(-1)


@pytest.fixture(scope="module")
def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(RUNS, N, P, generator=g)
    return x, torch.bernoulli((x @ TRUE).sigmoid(), generator=g)


@pytest.fixture(scope="module")
def fitted(data):
    """Maximum likelihood, and its closed-form standard errors."""
    fits = [sm.Logit(y.numpy(), x.numpy()).fit(disp=0) for x, y in zip(*data, strict=True)]
    return torch.tensor(np.array([f.params for f in fits])), torch.tensor(np.array([f.bse for f in fits]))


@pytest.fixture(scope="module")
def path(data):
    """SGD with a constant step, sampling with replacement, watched by two estimators."""
    x, y = data
    model = Regressions(RUNS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = BatchMeans(samples=N, batch_size=S, length=T)
    watched = pw.Pruner(model, optimizer, criterion="wald", uncertainty=means)
    pseudo = pw.Pruner(model, optimizer, criterion="wald", uncertainty=pw.PseudoBootstrap(last=200))
    g = torch.Generator().manual_seed(1)
    rows = torch.arange(RUNS)[:, None]
    for step in range(25 * T + 500):
        if step == 500:  # the way to the optimum is not part of the path
            watched.load_state_dict(watched.state_dict() | {"states": [means.init({})]})
        i = torch.randint(0, N, (RUNS, S), generator=g)
        optimizer.zero_grad()
        (F.binary_cross_entropy_with_logits(model(x[rows, i]), y[rows, i], reduction="sum") / S).backward()
        optimizer.step()
    return watched, pseudo


def quality(weight, se, df=None):
    """False discovery rate at q = 0.1, and coverage of 95 % intervals."""
    p = p_value(weight / se, df)
    found = torch.stack([discoveries(row, 0.1) for row in p])
    false = (found & (TRUE == 0)).sum(1) / found.sum(1).clamp(min=1)
    covered = p_value((weight - TRUE) / se, df) > 0.05
    return float(false.mean()), float(covered.double().mean())


def test_the_closed_form(fitted):
    rate, coverage = quality(*fitted)
    assert rate < 0.15
    assert 0.92 < coverage < 0.97


def test_our_closed_forms_agree_with_it(data, fitted):
    x, y = data
    for estimator, tolerance in ((InverseFisher(), 1e-4), (FisherDiagonal(), 0.25)):
        model = nn.Linear(P, 1, bias=False).double()
        model.weight.data = fitted[0][:1].clone()
        sigma = estimator.estimate(model, [(x[0].double(), y[0].double()[:, None])], "binary_cross_entropy")["weight"]
        torch.testing.assert_close(sigma[0], fitted[1][0], rtol=tolerance, atol=0)


def test_the_fisher_diagonal_finds_few_false(data, fitted):
    x, y = data
    rows = []
    for r in range(RUNS):
        model = nn.Linear(P, 1, bias=False).double()
        model.weight.data = fitted[0][r : r + 1].clone()
        batch = [(x[r].double(), y[r].double()[:, None])]
        rows.append(FisherDiagonal().estimate(model, batch, "binary_cross_entropy")["weight"][0])
    rate, coverage = quality(fitted[0], torch.stack(rows))
    assert rate < 0.15
    assert 0.9 < coverage < 0.97


def test_batch_means_are_standard_errors(path, fitted):
    watched, _ = path
    means, (state,) = watched.uncertainty, watched.state_dict()["states"]
    se, average = watched.sigma()["weight"], means.average(state)["weight"]
    assert 0.85 < float((se / fitted[1]).median()) < 1.15
    torch.testing.assert_close(average.double(), fitted[0], rtol=0, atol=0.05)
    rate, coverage = quality(average, se, means.degrees(state))
    assert rate < 0.15
    assert 0.9 < coverage < 0.98
    lengths = means.lengths(state)
    assert lengths.batches == 25
    assert 0.7 < lengths.doubling < 1.4
    assert 25 < lengths.effective < 25 * T / 10


def test_pruning_by_significance_tests_the_averaged_iterate(path):
    """The last iterate wanders about the average by far more than the standard error: 22 % of the zeros would stay."""
    watched, _ = path
    means, (state,) = watched.uncertainty, watched.state_dict()["states"]
    masks, report = watched.choose(alpha=0.05)
    p = p_value(means.average(state)["weight"] / watched.sigma()["weight"], means.degrees(state))
    assert torch.equal(masks["weight"], p <= 0.05)
    kept = masks["weight"][:, TRUE == 0]
    assert 0.02 < float(kept.float().mean()) < 0.08
    assert report.notes == means.caveats()


def test_the_pseudo_bootstrap_is_not_a_standard_error(path):
    """The bad figure beside the good ones: most of what it finds is false."""
    _, pseudo = path
    rate, coverage = quality(pseudo.model.get_parameter("weight").detach(), pseudo.sigma()["weight"])
    assert rate > 0.2
    assert coverage < 0.9


def test_short_batches_are_noticed(data):
    x, y = data
    model = Regressions(RUNS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer, criterion="wald", uncertainty=BatchMeans(samples=N, batch_size=S, length=5))
    for _ in range(120):
        i = torch.randint(0, N, (S,))
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(x[:, i]), y[:, i]).backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="batches of 5 steps"):
        pruner.sigma()
