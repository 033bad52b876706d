"""Derivatives of each sample: through torch.func, and one by one through what it cannot take, to the same numbers."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.model.modules import evaluating
from prunewald.uncertainty import FisherDiagonal, InverseFisher, Sandwich
from prunewald.uncertainty.batches import Inputs
from prunewald.uncertainty.curvature import pose
from prunewald.uncertainty.derivatives import Derivatives

pytestmark = pytest.mark.usefixtures("one_thread")

N, CLASSES = 12, 3


class Recurrent(nn.Module):
    """The last state of a recurrent layer, and a linear layer."""

    def __init__(self, cell, **options):
        super().__init__()
        self.cell = cell(2, 2, batch_first=True, **options)
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Words(nn.Module):
    """The mean of embedded words, squashed so that it has curvature, and a linear layer."""

    def __init__(self, sparse, bag):
        super().__init__()
        self.words = (nn.EmbeddingBag if bag else nn.Embedding)(5, 2, sparse=sparse)
        self.head = nn.Linear(2, CLASSES)
        self.bag = bag

    def forward(self, x):
        found = self.words(x)
        return self.head((found if self.bag else found.mean(1)).tanh())


def case(name):
    torch.manual_seed(0)
    y = torch.randint(0, CLASSES, (N,))
    if name in ("GRU", "LSTM", "RNN"):
        model = Recurrent(getattr(nn, name), dropout=0.5, num_layers=2) if name == "LSTM" else Recurrent(nn.GRU)
        return (Recurrent(nn.RNN) if name == "RNN" else model).double(), torch.randn(N, 4, 2).double(), y
    return Words(sparse="sparse" in name, bag="bag" in name).double(), torch.randint(0, 5, (N, 3)), y


CASES = ["GRU", "LSTM", "RNN", "sparse embedding", "sparse bag", "dense embedding", "dense bag"]


def by_hand(model, x, y):
    """Gradients and jacobians one sample at a time, with nothing but backward(); rows by all parameters in order."""
    gradients, information = [], 0.0
    for one, label in zip(x, y, strict=True):
        gradients.append(slopes(model, F.cross_entropy(model(one[None]), label[None])))
        jacobian = torch.stack([slopes(model, model(one[None])[0, k]) for k in range(CLASSES)])
        p = model(one[None])[0].detach().softmax(0)
        information = information + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    return torch.stack(gradients), information


def slopes(model, number):
    model.zero_grad()
    number.backward()
    return torch.cat([p.grad.to_dense().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", CASES)
def test_scores_and_information_are_those_found_by_hand(name):
    model, x, y = case(name)
    names = [n for n, _ in model.named_parameters()]
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("error")
        means = pose(model, [(x[:7], y[:7]), (x[7:], y[7:])], F.cross_entropy, None).means(names, observed=False)
        gradients, information = by_hand(model, x, y)
    torch.testing.assert_close(len(x) * (means.root.T @ means.root), information, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        len(x) * (means.scores.T @ means.scores), gradients.T @ gradients, rtol=1e-10, atol=1e-12
    )
    torch.testing.assert_close(len(x) * means.score, -gradients.sum(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN", "sparse embedding", "dense embedding"])
def test_the_hessian_is_the_slope_of_the_gradient(name):
    model, x, y = case(name)
    names, params = zip(*model.named_parameters(), strict=True)

    def gradient():
        return slopes(model, F.cross_entropy(model(x), y, reduction="sum"))

    rows = []
    with evaluating(model):
        means = pose(model, [(x, y)], F.cross_entropy, None).means(names, observed=True)
        for param in params:
            for at in range(param.numel()):
                entry, ends = param.data.view(-1), []
                for step in (1e-5, -2e-5):
                    entry[at] += step
                    ends.append(gradient())
                entry[at] += 1e-5
                rows.append((ends[0] - ends[1]) / 2e-5)
    torch.testing.assert_close(
        len(x) * (means.root.T @ means.root + means.bend), torch.stack(rows), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("name", ["dense bag", "sparse bag"])
def test_second_derivatives_that_torch_does_not_have_are_named_with_a_way_out(name):
    model, x, y = case(name)
    with pytest.raises(ValueError, match="observed=True.*Words.*observed=False"):
        InverseFisher(inverse="damped", observed=True).estimate(model, [(x, y)], F.cross_entropy)


@pytest.mark.parametrize("estimator", [FisherDiagonal(), FisherDiagonal("model"), InverseFisher("damped")], ids=repr)
@pytest.mark.parametrize("bag", [False, True])
def test_a_sparse_embedding_has_the_errors_of_a_dense_one(estimator, bag):
    sparse, x, y = case("sparse bag" if bag else "sparse embedding")
    dense = Words(sparse=False, bag=bag).double()
    dense.load_state_dict(sparse.state_dict())
    found, expected = (estimator.estimate(m, [(x, y)], F.cross_entropy) for m in (sparse, dense))
    for name, sigma in expected.items():
        torch.testing.assert_close(found[name], sigma, rtol=1e-10, atol=0)


def test_a_recurrent_model_is_estimated_and_left_as_it_was():
    model, x, y = case("GRU")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    sigmas = Sandwich(inverse="damped").estimate(model, [(x, y)], F.cross_entropy)
    assert all(sigma.isfinite().all() for sigma in sigmas.values())
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training


class Random(nn.Linear):
    """Drops out whatever the mode."""

    def forward(self, x):
        return F.dropout(super().forward(x))


@pytest.mark.parametrize("observed", [False, True])
def test_a_model_that_is_random_in_eval_mode_is_refused(observed):
    with pytest.raises(ValueError, match=r"Random.*training=self\.training"):
        InverseFisher(observed=observed).estimate(Random(3, 1), [(torch.randn(9, 3), torch.randn(9, 1))], F.mse_loss)


def test_an_error_of_the_model_itself_is_the_models():
    model = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Derivatives(model).jacobian(lambda o, y: o, ["weight"], Inputs((torch.randn(4, 5),), {}, 4), torch.zeros(4))
