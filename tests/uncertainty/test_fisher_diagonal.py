import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch.nn import functional as F

from prunewald.uncertainty import FisherDiagonal
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
    drawn = torch.stack(
        [FisherDiagonal("model", seed).estimate(model, data, F.mse_loss)["weight"] for seed in range(9)]
    )
    for at, fit in enumerate(fits):
        one = FisherDiagonal().estimate(linear(fit.params), [(x, y[:, [at]]) for x, y in data], F.mse_loss)
        torch.testing.assert_close(sigmas["weight"][at], one["weight"][0], rtol=1e-9, atol=0)
        expected = np.sqrt(fit.mse_resid / np.square(X).sum(0))
        np.testing.assert_allclose(drawn.mean(0)[at].numpy(), expected, rtol=0.1)
