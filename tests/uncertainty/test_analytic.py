"""Standard errors in closed form against statsmodels, Monte Carlo, and Optimal Brain Surgeon."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn
from torch.nn import functional as F

from prunewald import wald_test
from prunewald.uncertainty import InverseFisher, Sandwich, SGDAsymptotic
from tests.uncertainty.helpers import BINARY, CONTINUOUS, N, P, X, batches, flat, linear, several

pytestmark = pytest.mark.usefixtures("one_thread")

OLS = sm.OLS(CONTINUOUS, sm.add_constant(X)).fit()
LOGIT = sm.Logit(BINARY, sm.add_constant(X)).fit(disp=0)
ROBUST = sm.Logit(BINARY, sm.add_constant(X)).fit(disp=0, cov_type="HC0")


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize(
    ("estimator", "fit", "errors", "y", "loss"),
    [
        (InverseFisher, OLS, OLS.bse, CONTINUOUS, F.mse_loss),
        (Sandwich, OLS, OLS.HC0_se, CONTINUOUS, "squared_error"),
        (InverseFisher, LOGIT, LOGIT.bse, BINARY, F.binary_cross_entropy_with_logits),
        (Sandwich, ROBUST, ROBUST.bse, BINARY, nn.BCEWithLogitsLoss()),
    ],
    ids=["OLS", "HC0", "logit", "logit HC0"],
)
def test_standard_errors_of_regressions(estimator, fit, errors, y, loss, observed):
    sigmas = estimator(observed=observed).estimate(linear(fit.params), batches(y), loss)
    np.testing.assert_allclose(flat(sigmas), errors, rtol=1e-6)
    (block,) = sigmas.diagnosis.blocks
    assert (block.rank, block.size, block.negative) == (5, 5, 0)
    assert block.score < 1e-3  # at the optimum the mean score is zero
    assert sigmas.diagnosis.samples == N
    assert not sigmas.diagnosis.bad


def test_a_redundant_model_has_no_inverse_and_says_so():
    model = nn.Linear(P, 2).double()  # softmax over two outputs: only their difference matters
    data = [(torch.tensor(X), torch.tensor(BINARY).long())]
    sigmas = InverseFisher().estimate(model, data, F.cross_entropy)
    assert sigmas["weight"].isnan().all()
    assert "rank 5 of 10" in str(sigmas.diagnosis)
    assert sigmas.diagnosis.bad == {"weight": 8, "bias": 2}
    assert "no standard error for 8 entries of weight" in str(sigmas.diagnosis)
    for inverse in ("pseudo", "damped"):
        assert (InverseFisher(inverse=inverse).estimate(model, data, F.cross_entropy)["weight"] > 0).all()


def test_a_pseudo_inverse_of_two_outputs_is_half_the_error_of_their_difference():
    model = nn.Linear(P, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(np.stack([-LOGIT.params[1:] / 2, LOGIT.params[1:] / 2])))
        model.bias.copy_(torch.tensor([-LOGIT.params[0] / 2, LOGIT.params[0] / 2]))
    sigmas = InverseFisher(inverse="pseudo").estimate(
        model, [(torch.tensor(X), torch.tensor(BINARY).long())], F.cross_entropy
    )
    np.testing.assert_allclose(sigmas["weight"][1].numpy(), LOGIT.bse[1:] / 2, rtol=1e-6)


def test_a_weight_without_information_is_not_certain():
    x = torch.tensor(X).clone()
    x[:, 1] = 0
    data = [(x, torch.tensor(BINARY)[:, None])]
    sigmas = InverseFisher(inverse="pseudo").estimate(linear(LOGIT.params), data, "binary_cross_entropy")
    assert sigmas["weight"][0].isinf().tolist() == [False, True, False, False]


def test_an_indefinite_hessian_gives_negative_variances_which_become_nan_and_are_named():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(P, 3), nn.Tanh(), nn.Linear(3, 1)).double()  # not trained: no optimum
    sigmas = InverseFisher(observed=True).estimate(model, batches(5 * CONTINUOUS), F.mse_loss)
    (block,) = sigmas.diagnosis.blocks
    assert block.negative > 0
    assert sum(sigmas.diagnosis.bad.values()) == block.negative == sum(int(s.isnan().sum()) for s in sigmas.values())
    assert block.score > 3  # the mean score is far from zero


def test_z_squared_is_2n_times_the_saliency_of_optimal_brain_surgeon():
    model = linear(LOGIT.params)
    se = InverseFisher(observed=True).estimate(model, batches(BINARY), "binary_cross_entropy")["weight"]
    weight = model.weight.detach()

    def mean_loss(vector):
        logits = torch.tensor(X) @ vector[:P] + vector[P]
        return F.binary_cross_entropy_with_logits(logits, torch.tensor(BINARY))

    point = torch.cat([weight[0], model.bias.detach()])
    inverse = torch.linalg.inv(torch.func.hessian(mean_loss)(point))
    saliency = weight[0].square() / (2 * inverse.diagonal()[:P])
    torch.testing.assert_close(wald_test(weight, se).z[0].square(), 2 * N * saliency, rtol=1e-10, atol=0)


def test_sgd_asymptotic_against_monte_carlo():
    torch.manual_seed(0)
    model = linear(OLS.params)
    rate, steps, chains = 1.0, 4000, 400
    predicted = SGDAsymptotic(rate=rate, steps=steps).estimate(model, batches(CONTINUOUS), F.mse_loss)
    x = torch.cat([torch.ones(N, 1, dtype=torch.float64), torch.tensor(X)], 1)
    y = torch.tensor(CONTINUOUS)
    best = torch.tensor(OLS.params)
    w = best.repeat(chains, 1)
    for t in range(1, steps + 1):
        i = torch.randint(0, N, (chains,))
        gradient = 2 * ((x[i] * w).sum(1) - y[i])[:, None] * x[i]
        w -= rate / (t + 20) * gradient
    np.testing.assert_allclose(flat(predicted), w.std(0).numpy(), rtol=0.15)


def test_sgd_asymptotic_refuses_a_rate_that_is_too_small():
    with pytest.raises(ValueError, match=r"rate=0.01.*\('weight', 'bias'\).*rates above"):
        SGDAsymptotic(rate=0.01).estimate(linear(OLS.params), batches(CONTINUOUS), F.mse_loss)


def test_blocks_by_layer_where_the_whole_is_too_large(monkeypatch):
    from prunewald.uncertainty import analytic

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(P, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    monkeypatch.setattr(analytic, "_FULL", 12)
    sigmas = InverseFisher(inverse="damped").estimate(model, batches(CONTINUOUS), F.mse_loss)
    assert [block.params for block in sigmas.diagnosis.blocks] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    monkeypatch.setattr(analytic, "_FULL", 5)
    with pytest.raises(ValueError, match="'0' has 10 parameters.*use FisherDiagonal"):
        InverseFisher().estimate(model, batches(CONTINUOUS), F.mse_loss)


def test_rounding_of_a_float32_hessian_is_not_rank():
    torch.manual_seed(0)
    model = nn.Linear(20, 5)  # softmax: the outputs are known up to a common shift
    batch = [(torch.randn(500, 20), torch.randint(0, 5, (500,)))]
    sigmas = InverseFisher(observed=True).estimate(model, batch, F.cross_entropy)
    assert sigmas.diagnosis.blocks[0].rank == 84
    assert sigmas["bias"].isnan().all()


@pytest.mark.parametrize("observed", [False, True])
def test_several_squared_outputs_have_a_variance_each(observed):
    model, data, fits = several([1.0, 10.0, 0.1])
    for estimator, errors in ((InverseFisher, "bse"), (Sandwich, "HC0_se")):
        sigmas = estimator(observed=observed).estimate(model, data, F.mse_loss)
        expected = np.stack([getattr(fit, errors) for fit in fits])
        np.testing.assert_allclose(sigmas["bias"].numpy(), expected[:, 0], rtol=1e-6)
        np.testing.assert_allclose(sigmas["weight"].numpy(), expected[:, 1:], rtol=1e-6)


def test_outputs_of_any_shape_have_a_variance_each():
    model, data, _ = several([1.0, 10.0, 0.1, 1.0])
    shaped = nn.Sequential(model, nn.Unflatten(1, (2, 2)))
    sigmas = InverseFisher().estimate(shaped, [(x, y.view(-1, 2, 2)) for x, y in data], F.mse_loss)
    torch.testing.assert_close(sigmas["0.weight"], InverseFisher().estimate(model, data, F.mse_loss)["weight"])


def test_an_output_without_residuals_leaves_the_others_their_errors():
    model, data, fits = several([1.0, 1.0])
    with torch.no_grad():
        model.weight[1] = model.bias[1] = 0
    sigmas = InverseFisher().estimate(model, [(x, y * torch.tensor([1.0, 0.0])) for x, y in data], F.mse_loss)
    np.testing.assert_allclose(sigmas["weight"][0].numpy(), fits[0].bse[1:], rtol=1e-6)
    assert sigmas["weight"].isfinite().all()


def test_sgd_asymptotic_says_whose_error_it_is():
    sigmas = SGDAsymptotic(rate=2.0).estimate(linear(OLS.params), batches(CONTINUOUS), F.mse_loss)
    (note,) = sigmas.notes
    assert note.startswith("the standard errors are of SGD's last iterate after 300 steps of 2.0 / t")
    assert not InverseFisher().estimate(linear(OLS.params), batches(CONTINUOUS), F.mse_loss).notes
