import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.ensemble import SGD, train_many
from prunewald.uncertainty import Bootstrap

pytestmark = pytest.mark.usefixtures("one_thread")


def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = x @ np.array([1.0, -0.5, 0.0]) + rng.normal(size=400)
    model = nn.Linear(3, 1, bias=False).double()
    fit = sm.OLS(y, x).fit()
    model.weight.data = torch.tensor(fit.params)[None]
    return model, [(torch.tensor(x), torch.tensor(y)[:, None])], fit


@pytest.mark.parametrize("start", ["independent", "same", "warm"])
def test_it_is_a_standard_error_where_the_model_is_convex(start):
    model, batches, fit = regression()
    before = model.weight.detach().clone()
    sigma = Bootstrap(replicas=60, start=start).estimate(
        model,
        batches,
        F.mse_loss,
        epochs=300 if start == "warm" else 40,
        batch_size=400,
        optimizer=SGD(lr=0.2),
        progress=False,
    )
    np.testing.assert_allclose(sigma["weight"][0].numpy(), fit.HC0_se, rtol=0.3)
    assert torch.equal(model.weight, before)


def test_it_is_the_deviation_over_replicas_and_a_replica_depends_on_its_seed_alone():
    model, batches, _ = regression()
    training = {"epochs": 2, "batch_size": 50, "optimizer": SGD(lr=0.1), "progress": False}
    sigma = Bootstrap(replicas=4, start="warm", seed=7).estimate(
        model, batches, F.mse_loss, **(training | {"epochs": 20})
    )
    one = [
        train_many(
            model,
            *batches[0],
            loss=F.mse_loss,
            seeds=[seed],
            resample="bootstrap",
            start=dict(model.state_dict()),
            **training,
        ).params["weight"][0]
        for seed in range(7, 11)
    ]
    torch.testing.assert_close(sigma["weight"], torch.stack(one).std(0))


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("start", ["independent", "same", "warm"])
def test_a_frozen_parameter_has_no_sigma(start, how):
    _, batches, _ = regression()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model[0].requires_grad_(False)
    training = {"epochs": 1, "optimizer": SGD(lr=0.1), "how": how, "progress": False}
    sigma = Bootstrap(replicas=3, start=start).estimate(model, batches, F.mse_loss, **training)
    assert sigma.keys() == {"2.weight", "2.bias"}
    assert all((value > 0).all() for value in sigma.values())
    with pytest.raises(ValueError, match="requires_grad=True"):
        Bootstrap(replicas=3, start=start).estimate(model.requires_grad_(False), batches, F.mse_loss, **training)


@pytest.mark.parametrize("settings", [{"replicas": 1}, {"start": "cold"}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Bootstrap(**settings)


@pytest.mark.parametrize("start", ["independent", "same", "warm"])
def test_the_replicas_of_a_pruned_model_are_pruned(start):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    x = torch.randn(30, 4)
    masks = {"0.weight": torch.rand(3, 4) < 0.5}
    sigma = Bootstrap(3, start=start).estimate(
        model, [(x, (x[:, 0] > 0).long())], nn.functional.cross_entropy, epochs=10, masks=masks, progress=False
    )
    assert sigma["0.weight"][~masks["0.weight"]].isinf().all()
    assert (sigma["0.weight"][masks["0.weight"]] > 0).any()
    assert sigma["0.weight"][masks["0.weight"]].isfinite().all()


def test_batches_that_are_no_pairs_are_refused():
    model, x, y = torch.nn.Linear(4, 3), torch.randn(5, 4), torch.zeros(5).long()
    two = torch.nn.Bilinear(4, 4, 3)
    with pytest.raises(ValueError, match="a tuple of 3.*pairs of one tensor of inputs.*FisherDiagonal"):
        Bootstrap(2).estimate(two, [(x, x, y)], F.cross_entropy)
    with pytest.raises(ValueError, match="loss=None"):
        Bootstrap(2).estimate(model, [(x, y)])
    with pytest.raises(ValueError, match="no targets"):
        Bootstrap(2).estimate(model, [x], F.cross_entropy)


def test_dicts_and_a_limit():
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    data = [{"input": a, "labels": b} for a, b in zip(x.split(4), y.split(4), strict=True)]
    options = {"epochs": 1, "batch_size": 4, "progress": False}
    found = Bootstrap(2).estimate(torch.nn.Linear(4, 3), data, F.cross_entropy, limit=2, **options)
    expected = Bootstrap(2).estimate(torch.nn.Linear(4, 3), [(x[:8], y[:8])], F.cross_entropy, **options)
    assert all(torch.equal(sigma, expected[name]) for name, sigma in found.items())
