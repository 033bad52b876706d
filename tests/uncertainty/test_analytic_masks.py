"""Standard errors of pruned models: what is pruned is no parameter."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.uncertainty import FisherDiagonal, InverseFisher, LayerLeastSquares, Sandwich, SGDAsymptotic
from prunewald.uncertainty import analytic as analytic_module

pytestmark = pytest.mark.usefixtures("one_thread")

N, P = 40, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, P)) @ (np.eye(P) + 0.3)
Y = X @ RNG.normal(size=P) + 0.3 + RNG.normal(size=N)
LEFT = [0, 1, 3, 4]  # the third column is pruned
FIT = sm.OLS(Y, sm.add_constant(X[:, LEFT])).fit()
DATA = [(torch.tensor(X), torch.tensor(Y)[:, None])]
MASKS = {"weight": torch.tensor([[True, True, False, True, True]])}
ESTIMATORS = [InverseFisher(), Sandwich(), SGDAsymptotic(rate=5.0), FisherDiagonal(), LayerLeastSquares()]


def pruned():
    model = nn.Linear(P, 1).double()
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0, LEFT] = torch.tensor(FIT.params[1:])
        model.bias.copy_(torch.tensor(FIT.params[:1]))
    return model


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize(("estimator", "errors"), [(InverseFisher, FIT.bse), (Sandwich, FIT.HC0_se)])
def test_a_pruned_column_is_a_regression_without_it(estimator, errors, observed):
    sigmas = estimator(observed=observed).estimate(pruned(), DATA, F.mse_loss, masks=MASKS)
    np.testing.assert_allclose(sigmas["weight"][0, LEFT].numpy(), errors[1:], rtol=1e-6)
    np.testing.assert_allclose(sigmas["bias"].numpy(), errors[:1], rtol=1e-6)
    assert sigmas["weight"][0, 2].isinf()
    assert sigmas.diagnosis.blocks[0].size == P
    assert not sigmas.diagnosis.bad


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_masks_are_the_model_without_the_column(estimator):
    small = nn.Linear(P - 1, 1).double()
    model = pruned()
    small.load_state_dict({"weight": model.weight[:, LEFT].detach(), "bias": model.bias.detach()})
    expected = estimator.estimate(small, [(DATA[0][0][:, LEFT], DATA[0][1])], F.mse_loss)
    found = estimator.estimate(model, DATA, F.mse_loss, masks=MASKS)
    torch.testing.assert_close(found["weight"][:, LEFT], expected["weight"])
    assert found["weight"][0, 2].isinf()


def test_masks_of_a_pruner_and_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(P, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune(0.5)
    sigmas = InverseFisher(inverse="damped").estimate(model, DATA, F.mse_loss, masks=pruner.masks)
    assert all(sigmas[name][~mask].isinf().all() for name, mask in pruner.masks.items())
    masks = pruner.masks
    pruner.detach()
    second = pw.Pruner(model, criterion="wald", uncertainty=sigmas)
    second.prune(0.75)
    assert all((mask <= masks[name]).all() for name, mask in second.masks.items())


def test_a_layer_that_is_all_pruned_has_no_block(monkeypatch):
    monkeypatch.setattr(analytic_module, "_FULL", 8)
    model = nn.Sequential(nn.Linear(P, 1), nn.Linear(1, 2, bias=False), nn.Linear(2, 1)).double()
    masks = {"1.weight": torch.zeros(2, 1, dtype=torch.bool)}
    sigmas = InverseFisher(inverse="pseudo").estimate(model, DATA, F.mse_loss, masks=masks)
    assert [block.params for block in sigmas.diagnosis.blocks] == [("0.weight", "0.bias"), ("2.weight", "2.bias")]
    assert sigmas["1.weight"].isinf().all()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_masks_are_checked(estimator):
    """By the one check, which has tests of its own."""
    with pytest.raises(ValueError, match="'wieght'.*weight, bias"):
        estimator.estimate(pruned(), DATA, F.mse_loss, masks={"wieght": MASKS["weight"]})
    with pytest.raises(TypeError, match=r"Pruner.*pruner\.masks"):
        estimator.estimate(pruned(), DATA, F.mse_loss, masks=pw.Pruner(pruned()))


def test_masks_that_leave_nothing():
    masks = {"weight": torch.zeros(1, P, dtype=torch.bool), "bias": torch.zeros(1, dtype=torch.bool)}
    with pytest.raises(ValueError, match="weight, bias.*mask is True"):
        FisherDiagonal().estimate(pruned(), DATA, F.mse_loss, masks=masks)
