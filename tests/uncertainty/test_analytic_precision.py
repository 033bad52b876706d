"""Closed forms of models in single precision: their rank, and standard errors in raw units."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.uncertainty import InverseFisher, Sandwich

pytestmark = pytest.mark.usefixtures("one_thread")


def softmax(inputs, classes, samples=300):
    torch.manual_seed(inputs * classes)
    model = nn.Linear(inputs, classes)
    x = torch.randn(samples, inputs) * 10.0 ** torch.arange(inputs).remainder(4)  # units from 1 to 1,000
    with torch.no_grad():
        model.weight *= 5 / x.std(0)
    return model, [(x, torch.randint(0, classes, (samples,)))]


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize(
    ("inputs", "classes"),
    [(1, 2), (2, 2), (4, 2), (8, 2), (1, 3), (2, 3), (4, 3), (8, 3), (1, 5), (2, 5), (4, 5), (8, 5)],
)
def test_a_softmax_in_single_precision_is_as_singular_as_it_is(inputs, classes, observed):
    model, data = softmax(inputs, classes)
    sigmas = InverseFisher(observed=observed).estimate(model, data, F.cross_entropy)
    (block,) = sigmas.diagnosis.blocks
    assert (block.rank, block.size) == ((inputs + 1) * (classes - 1), (inputs + 1) * classes)
    assert all(sigma.isnan().all() for sigma in sigmas.values())
    with pytest.raises(ValueError, match="rank"):
        pw.Pruner(model, criterion="wald", uncertainty=sigmas).prune(alpha=0.05)


@pytest.mark.parametrize("observed", [False, True])
def test_a_pseudo_inverse_in_single_precision_is_that_of_double(observed):
    model, data = softmax(4, 3)
    estimator = InverseFisher("pseudo", observed=observed)
    single = estimator.estimate(model, data, F.cross_entropy)
    double = estimator.estimate(model.double(), [(x.double(), y) for x, y in data], F.cross_entropy)
    for name, sigma in double.items():
        torch.testing.assert_close(single[name].double(), sigma, rtol=1e-3, atol=0)


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("estimator", [InverseFisher, Sandwich])
def test_raw_units_in_single_precision(estimator, observed):
    """A thousandth beside a hundred million."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)) * [1e-3, 1.0, 1e8]
    y = (rng.random(200) < 0.4).astype(float)
    fit = sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-12)
    robust = sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-12, cov_type="HC0")
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(fit.params[1:])[None])
        model.bias.copy_(torch.tensor(fit.params[:1]))
    batch = torch.tensor(x).float(), torch.tensor(y).float()[:, None]
    sigmas = estimator(observed=observed).estimate(model, [batch], F.binary_cross_entropy_with_logits)
    expected = (fit if estimator is InverseFisher else robust).bse
    np.testing.assert_allclose(sigmas["weight"][0].numpy(), expected[1:], rtol=1e-5)
    assert sigmas.notes == ()


def test_a_curved_model_in_single_precision_has_the_hessian_of_double():
    torch.manual_seed(1)
    x = torch.randn(400, 3)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    y = model(x).detach() + 0.1 * torch.randn(400, 1)
    double = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    double.load_state_dict(model.state_dict())
    estimator = InverseFisher(observed=True)
    single = estimator.estimate(model, [(x, y)], F.mse_loss)
    expected = estimator.estimate(double, [(x.double(), y.double())], F.mse_loss)
    for name, sigma in expected.items():
        torch.testing.assert_close(single[name].double(), sigma, rtol=1e-4, atol=0)


class Single(nn.Linear):
    """A layer that computes in single precision, whatever it is given."""

    def forward(self, x):
        return F.linear(x.float(), self.weight.float(), self.bias.float())


class Fixed(Single):
    """One that nothing else can be done with."""

    def forward(self, x):
        return F.linear(x, self.weight.float(), self.bias.float())


@pytest.mark.parametrize("layer", [nn.Linear, Single, Fixed])
def test_a_model_in_single_precision_is_left_as_it_is_and_computed_in_double_where_that_can_be(layer):
    torch.manual_seed(0)
    x = torch.randn(60, 3) + 3000  # the intercept hides the residuals from single precision
    y = 0.01 * torch.randn(60, 1) + x.sum(1, keepdim=True)
    model, double = layer(3, 1), nn.Linear(3, 1).double()
    double.load_state_dict(model.requires_grad_().state_dict())
    sigmas = Sandwich().estimate(model, [(x, y)], F.mse_loss)
    expected = Sandwich().estimate(double, [(x.double(), y.double())], F.mse_loss)
    assert {p.dtype for p in [*model.parameters(), *sigmas.values()]} == {torch.float32}
    error = (sigmas["weight"].double() / expected["weight"] - 1).abs().max()
    assert error < (1e-6 if layer is nn.Linear else 1e-2)
