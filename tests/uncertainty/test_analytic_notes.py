"""What a report says of standard errors that are none, or poor, or of another point; and what is not tested."""

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.statistics import p_value
from prunewald.uncertainty import FisherDiagonal, InverseFisher, Sandwich, SGDAsymptotic
from tests.uncertainty.helpers import BINARY, CONTINUOUS, N, P, X, batches, linear

pytestmark = pytest.mark.usefixtures("one_thread")

OLS = sm.OLS(CONTINUOUS, sm.add_constant(X)).fit()
LABELS = [(torch.tensor(X), torch.tensor(BINARY).long())]


def notes(model, sigmas, **request):
    return pw.Pruner(model, criterion="wald", uncertainty=sigmas).prune(**(request or {"sparsity": 0.5})).notes


def softmax():
    torch.manual_seed(0)
    return nn.Linear(P, 2).double()  # of two outputs only the difference matters


@pytest.mark.parametrize("estimator", [InverseFisher, Sandwich])
@pytest.mark.parametrize(("inverse", "done"), [("pseudo", "pseudo-inverted"), ("damped", "damped by 0.001")])
def test_what_was_not_inverted_is_noted_and_not_tested(estimator, inverse, done):
    model = softmax()
    sigmas = estimator(inverse=inverse).estimate(model, LABELS, F.cross_entropy)
    found = notes(model, sigmas)
    assert done in found[0]
    assert "rank 5 of 10" in found[1]
    for request in ({"alpha": 0.05}, {"fdr": 0.1}):
        with pytest.raises(ValueError, match=f"{estimator.__name__}.*{inverse}.*inverse='inverse'"):
            notes(softmax(), sigmas, **request)


def test_a_redundant_output_that_is_left_out_can_be_tested():
    """As the error says: one output at zero, left out by masks, is the logistic regression."""
    fit = sm.Logit(BINARY, sm.add_constant(X)).fit(disp=0)
    model = softmax()
    with torch.no_grad():
        for param, value in ((model.weight, fit.params[1:]), (model.bias, fit.params[0])):
            param[0], param[1] = 0, torch.as_tensor(value)
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()}
    for mask in masks.values():
        mask[0] = False
    sigmas = InverseFisher().estimate(model, LABELS, F.cross_entropy, masks=masks)
    np.testing.assert_allclose(sigmas["weight"][1].numpy(), fit.bse[1:], rtol=1e-6)
    report_notes = notes(model, sigmas, alpha=0.05)
    assert report_notes == []
    np.testing.assert_array_equal((model.weight[1] != 0).numpy(), fit.pvalues[1:] < 0.05)


def test_singular_information_is_an_error_with_its_rank():
    model = softmax()
    with pytest.raises(ValueError, match="rank 5 of 10"):
        notes(model, InverseFisher().estimate(model, LABELS, F.cross_entropy))


def test_weights_that_are_hardly_told_apart_are_noted():
    x = torch.tensor(X)
    x[:, 1] = x[:, 0] + 1e-5 * x[:, 1]
    model = linear(np.zeros(P + 1))
    fit = torch.linalg.lstsq(torch.cat([torch.ones(N, 1), x], 1), torch.tensor(CONTINUOUS)[:, None]).solution
    with torch.no_grad():
        model.bias.copy_(fit[0])
        model.weight.copy_(fit[1:].T)
    sigmas = InverseFisher().estimate(model, [(x, torch.tensor(CONTINUOUS)[:, None])], F.mse_loss)
    (note,) = notes(model, sigmas)
    assert "condition" in note
    assert "hardly tell some weights apart" in note


@pytest.mark.parametrize(
    "estimator", [FisherDiagonal(), InverseFisher(), Sandwich(), SGDAsymptotic(rate=20.0)], ids=repr
)
def test_standard_errors_of_an_untrained_model_are_noted(estimator):
    start, end = linear(np.zeros(P + 1)), linear(OLS.params)
    found = [estimator.estimate(model, batches(CONTINUOUS), F.mse_loss).notes for model in (start, end)]
    far = [[note for note in some if "standard errors from 0" in note] for some in found]
    assert (len(far[0]), len(far[1])) == (1, 0)
    assert "those of a minimum of the loss, and these weights are none" in far[0][0]


def test_the_note_of_an_untrained_model_is_in_every_report_once():
    sigmas = InverseFisher().estimate(linear(OLS.params + 1), batches(CONTINUOUS), F.mse_loss)
    for request in ({"sparsity": 0.5}, {"alpha": 0.05}):
        (note,) = notes(linear(OLS.params + 1), sigmas, **request)
        assert "standard errors from 0" in note


def test_weights_that_the_data_tell_nothing_of_are_noted_and_the_others_have_their_errors():
    x = torch.tensor(X)
    x[:, 1] = 0
    fit = sm.OLS(CONTINUOUS, sm.add_constant(X[:, [0, 2, 3]])).fit()
    model = linear(np.insert(fit.params, 2, 1.0))
    sigmas = InverseFisher().estimate(model, [(x, torch.tensor(CONTINUOUS)[:, None])], F.mse_loss)
    assert sigmas["weight"][0, 1].isinf()
    np.testing.assert_allclose(sigmas["weight"][0, [0, 2, 3]].numpy(), fit.bse[1:], rtol=1e-9)
    assert sigmas.degrees == fit.df_resid
    assert any("nothing of 1 weights" in note for note in sigmas.notes)


# ---- t, where a variance is estimated ------------------------------------------------------------------------------


def test_the_diagonal_tests_each_weight_as_if_alone_by_t_and_says_so():
    model = linear(OLS.params)
    sigmas = FisherDiagonal("model").estimate(model, batches(CONTINUOUS), F.mse_loss)
    assert sigmas.degrees == OLS.df_resid
    (note,) = notes(model, sigmas, alpha=0.05)
    assert "as if all others were known" in note
    assert notes(linear(OLS.params), sigmas) == []


@pytest.mark.parametrize("estimator", [InverseFisher, Sandwich])
def test_least_squares_has_n_minus_p_degrees_of_freedom(estimator):
    sigmas = estimator().estimate(linear(OLS.params), batches(CONTINUOUS), F.mse_loss)
    assert sigmas.degrees == OLS.df_resid == N - P - 1
    assert estimator(inverse="damped").estimate(softmax(), LABELS, F.cross_entropy).degrees is None
    assert SGDAsymptotic(rate=5.0).estimate(linear(OLS.params), batches(CONTINUOUS), F.mse_loss).degrees is None


def small(seed, n=15, p=5):
    """A least-squares fit to noise: every weight is truly zero."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, p)), rng.normal(size=n)
    fit = sm.OLS(y, sm.add_constant(x)).fit()
    model = nn.Linear(p, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(fit.params[1:])[None])
        model.bias.copy_(torch.tensor(fit.params[:1]))
    return model, [(torch.tensor(x), torch.tensor(y)[:, None])], fit


def test_pruning_by_significance_is_by_t():
    told = 0
    for seed in range(20):
        model, data, fit = small(seed)
        sigmas = InverseFisher().estimate(model, data, F.mse_loss)
        p = p_value(model.weight.detach() / sigmas["weight"], sigmas.degrees)
        np.testing.assert_allclose(p[0].numpy(), fit.pvalues[1:], rtol=1e-6)
        masks, _ = pw.Pruner(model, uncertainty=sigmas).choose(alpha=0.05)
        np.testing.assert_array_equal(masks["weight"][0].numpy(), fit.pvalues[1:] < 0.05)
        told += int((fit.pvalues[1:] >= 0.05).sum() - (2 * stats.norm.sf(abs(fit.tvalues[1:])) >= 0.05).sum())
    assert told > 0, "by the normal distribution some of these weights would have stayed"


@pytest.mark.slow
def test_true_zeros_stay_as_often_as_the_level_says():
    """Of 15 samples and 6 parameters; by the normal distribution it is about 8 %."""
    p = []
    for seed in range(600):
        model, data, _ = small(seed)
        sigmas = InverseFisher().estimate(model, data, F.mse_loss)
        p.append([p_value(model.weight.detach() / sigmas["weight"], df)[0] for df in (sigmas.degrees, None)])
    by_t, by_normal = ((torch.stack(column) < 0.05).double().mean() for column in zip(*p, strict=True))
    assert 0.04 < by_t < 0.06
    assert by_normal > 0.07
