import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.uncertainty import FisherDiagonal, fisher_diagonal
from tests.uncertainty.helpers import TRUE, P, X, flat, linear, several

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("labels", ["data", "model"])
@pytest.mark.parametrize("kind", ["logit", "OLS"])
def test_the_fisher_diagonal_is_a_standard_error_on_an_independent_design(labels, kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, P))
    noise = rng.normal(size=4000)
    y = x @ TRUE + noise if kind == "OLS" else (rng.random(4000) < 1 / (1 + np.exp(-x @ TRUE))).astype(float)
    fit = (sm.OLS if kind == "OLS" else sm.Logit)(y, sm.add_constant(x)).fit(**({} if kind == "OLS" else {"disp": 0}))
    loss = "squared_error" if kind == "OLS" else "binary_cross_entropy"
    data = [(torch.tensor(x), torch.tensor(y)[:, None])]
    sigmas = FisherDiagonal(labels=labels).estimate(linear(fit.params), data, loss)
    np.testing.assert_allclose(flat(sigmas), fit.bse, rtol=0.1)


def test_the_fisher_diagonal_of_several_squared_outputs():
    model, data, fits = several([1.0, 10.0])
    sigmas = FisherDiagonal().estimate(model, data, F.mse_loss)
    exact = FisherDiagonal("model").estimate(model, data, F.mse_loss)["weight"]
    for at, fit in enumerate(fits):
        one = FisherDiagonal().estimate(linear(fit.params), [(x, y[:, [at]]) for x, y in data], F.mse_loss)
        torch.testing.assert_close(sigmas["weight"][at], one["weight"][0], rtol=1e-9, atol=0)
        expected = np.sqrt(fit.mse_resid / np.square(X).sum(0))
        np.testing.assert_allclose(exact[at].numpy(), expected, rtol=1e-9)


def test_it_is_one_over_the_root_of_the_summed_squares_of_gradients_one_sample_at_a_time():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(0, 3, (20,))
    x[:, 1] = 0
    squares = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for one, label in zip(x, y, strict=True):
        model.zero_grad()
        F.cross_entropy(model(one[None]), label[None]).backward()
        for name, param in model.named_parameters():
            squares[name] += param.grad.square()
    sigmas = FisherDiagonal().estimate(model, [(x[:15], y[:15]), (x[15:], y[15:])], "cross_entropy")
    for name, square in squares.items():
        torch.testing.assert_close(sigmas[name], 1 / square.sqrt())
    assert sigmas["0.weight"][:, 1].isinf().all(), "no gradient arrives where the input is zero"


def test_labels_drawn_from_the_model_depend_on_the_seed_alone():
    model, data = nn.Linear(3, 40), [(torch.randn(30, 3), torch.zeros(30).long())]
    first, again, other = (
        FisherDiagonal("model", seed).estimate(model, data, "cross_entropy")["weight"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ValueError, match="labels='mine'.*'data', 'model'"):
        FisherDiagonal("mine")


KINDS = {
    "cross_entropy": (3, lambda o: torch.diag(o.softmax(0)) - torch.outer(o.softmax(0), o.softmax(0))),
    "binary_cross_entropy": (2, lambda o: torch.diag(o.sigmoid() * (1 - o.sigmoid()))),
    "poisson": (2, lambda o: torch.diag(o.exp())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_few_labels_of_the_model_are_all_taken_with_their_probabilities(kind):
    torch.manual_seed(0)
    outputs, information = KINDS[kind]
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for one in x:
        curve = information(model(one).detach())
        rows = [torch.autograd.grad(model(one)[k], list(model.parameters())) for k in range(outputs)]
        for at, name in enumerate(expected):
            jacobian = torch.stack([row[at] for row in rows])
            expected[name] += torch.einsum("i...,ij,j...->...", jacobian, curve, jacobian)
    y = torch.zeros(20).long() if kind == "cross_entropy" else torch.zeros(20, outputs)
    for seed in (0, 1):
        sigmas = FisherDiagonal("model", seed).estimate(model, [(x[:15], y[:15]), (x[15:], y[15:])], kind)
        for name, square in expected.items():
            torch.testing.assert_close(sigmas[name], 1 / square.sqrt(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", [*KINDS, "squared_error"])
def test_drawn_labels_tend_to_the_exact_information(kind, monkeypatch):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2).double(), torch.randn(2000, 3, dtype=torch.float64)
    y = torch.randint(0, 2, (2000,)) if kind == "cross_entropy" else torch.randint(0, 2, (2000, 2)).double()
    exact = FisherDiagonal("model").estimate(model, [(x, y)], kind)
    monkeypatch.setattr(fisher_diagonal, "_FEW", 1)
    drawn = FisherDiagonal("model").estimate(model, [(x, y)], kind)
    for name, sigma in drawn.items():
        assert not torch.equal(sigma, exact[name])
        torch.testing.assert_close(sigma, exact[name], rtol=0.1, atol=0)
