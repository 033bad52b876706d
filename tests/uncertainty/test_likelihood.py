"""Which losses are likelihoods, and of which samples."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.uncertainty import FisherDiagonal, InverseFisher, Sandwich
from prunewald.uncertainty.batches import Samples
from prunewald.uncertainty.likelihood import likelihood, negative_log_likelihood, output_factor, output_slope
from tests.uncertainty.helpers import CONTINUOUS, batches, linear

pytestmark = pytest.mark.usefixtures("one_thread")

ESTIMATORS = [InverseFisher(inverse="damped"), Sandwich(inverse="damped"), FisherDiagonal(), FisherDiagonal("model")]


LOSSES = {
    "cross_entropy": (F.cross_entropy, nn.CrossEntropyLoss()),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss()),
    "squared_error": (F.mse_loss, nn.MSELoss()),
    "poisson": (F.poisson_nll_loss, nn.PoissonNLLLoss()),
}
OUTPUT = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
PRECISION = torch.tensor([1.0, 0.5, 4.0], dtype=torch.float64)
# What could be observed, with its probabilities; of a Gaussian no list, but its information is known.
OUTCOMES = {
    "cross_entropy": [(torch.tensor(label), OUTPUT.softmax(0)[label]) for label in range(3)],
    "binary_cross_entropy": [
        (target, torch.where(target > 0, OUTPUT.sigmoid(), 1 - OUTPUT.sigmoid()).prod())
        for target in torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    ],
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_known_by_name_function_and_module(name):
    assert [likelihood(loss) for loss in (name, *LOSSES[name])] == [name] * 3


@pytest.mark.parametrize("kind", OUTCOMES)
def test_the_information_is_the_covariance_of_the_score_and_the_mean_hessian(kind):
    def loss(output, target):
        return negative_log_likelihood(kind, output, target, PRECISION)

    assert float(sum(p for _, p in OUTCOMES[kind])) == pytest.approx(1)
    scores = [(torch.func.grad(loss)(OUTPUT, y), p) for y, p in OUTCOMES[kind]]
    hessian = sum(p * torch.func.hessian(loss)(OUTPUT, y) for y, p in OUTCOMES[kind])
    factor = output_factor(kind, OUTPUT, PRECISION)
    torch.testing.assert_close(factor @ factor.T, sum(p * torch.outer(g, g) for g, p in scores))
    torch.testing.assert_close(factor @ factor.T, hessian)


def test_the_information_about_squared_outputs_is_their_precision():
    target = torch.zeros(3, dtype=torch.float64)
    factor = output_factor("squared_error", OUTPUT, PRECISION)
    torch.testing.assert_close(factor @ factor.T, torch.diag(PRECISION))
    found = negative_log_likelihood("squared_error", OUTPUT, target, PRECISION)
    torch.testing.assert_close(found, 0.5 * (PRECISION * OUTPUT**2).sum())


@pytest.mark.parametrize(
    ("loss", "labels", "kept"),
    [
        ("cross_entropy", [0, -100, 2, 1], [0, 2, 3]),
        (nn.CrossEntropyLoss(ignore_index=1), [0, -100, 2, 1], [0, 1, 2]),
        ("squared_error", [0, -100, 2, 1], [0, 1, 2, 3]),
        ("cross_entropy", [[0, -100], [-100, -100], [1, 1], [-100, 2]], [0, 2, 3]),
    ],
)
def test_samples_whose_labels_are_all_ignored_do_not_count(loss, labels, kept):
    data = [(torch.arange(4.0)[:, None], torch.tensor(labels))]
    ((x, y),) = Samples(data, nn.Linear(1, 3), loss, passes=None)
    assert x.args[0].flatten().tolist() == kept
    assert y.tolist() == [labels[at] for at in kept]


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="loss 'hinge'.*cross_entropy, binary_cross_entropy, squared_error, poisson"):
        InverseFisher().estimate(linear(np.zeros(5)), batches(CONTINUOUS), "hinge")


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.MSELoss(reduction="sum"),
        nn.CrossEntropyLoss(torch.ones(2)),
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)),
        nn.PoissonNLLLoss(log_input=False),
    ],
    ids=repr,
)
def test_a_loss_that_is_no_plain_likelihood_is_refused(loss):
    with pytest.raises(ValueError, match=f"{type(loss).__name__}.*use its defaults"):
        InverseFisher().estimate(linear(np.zeros(5)), batches(CONTINUOUS), loss)


CLOSED = [e for e in ESTIMATORS if not isinstance(e, FisherDiagonal)]


@pytest.mark.parametrize("estimator", CLOSED, ids=repr)
def test_labels_by_position_are_refused_by_closed_forms(estimator):
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    with pytest.raises(ValueError, match=r"\(3, 2\).*positions laid out as samples.*FisherDiagonal\(\)"):
        estimator.estimate(model, [(torch.randn(8, 4), torch.zeros(8, 2).long())], F.cross_entropy)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.parametrize(
    ("loss", "ignored"),
    [(F.cross_entropy, -100), (nn.CrossEntropyLoss(), -100), (nn.CrossEntropyLoss(ignore_index=2), 2)],
    ids=["function", "module", "own index"],
)
def test_ignored_labels_are_as_if_not_there(estimator, loss, ignored):
    g = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(90, 4, generator=g, dtype=torch.float64), torch.randint(0, 2, (90,), generator=g)
    gone = torch.rand(90, generator=g) < 0.4
    gone[30:60] = True  # a batch with nothing in it
    y[gone] = ignored
    expected = estimator.estimate(model, [(x[~gone], y[~gone])], F.cross_entropy)
    found = estimator.estimate(model, list(zip(x.split(30), y.split(30), strict=True)), loss)
    for name, sigma in found.items():
        torch.testing.assert_close(sigma, expected[name])
    if not isinstance(estimator, FisherDiagonal):
        assert found.diagnosis.samples == int((~gone).sum())


class Focal(nn.CrossEntropyLoss):
    """A subclass with another value."""

    def forward(self, output, target):
        return super().forward(output, target) ** 2


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_subclass_is_not_taken_for_its_parent(estimator):
    model, data = nn.Linear(4, 3), [(torch.randn(8, 4), torch.zeros(8).long())]
    with pytest.raises(ValueError, match=r"Focal\(\).*CrossEntropyLoss.*loss='cross_entropy'"):
        estimator.estimate(model, data, Focal())


@pytest.mark.parametrize("kind", [*OUTCOMES, "squared_error", "poisson"])
def test_the_slope_is_the_gradient_by_the_outputs(kind):
    target = OUTCOMES[kind][1][0] if kind in OUTCOMES else torch.tensor([1.0, 0.0, 3.0])
    gradient = torch.func.grad(lambda o: negative_log_likelihood(kind, o, target, PRECISION))(OUTPUT)
    torch.testing.assert_close(output_slope(kind, OUTPUT, target, PRECISION), gradient)


def test_the_information_of_counts_is_their_mean():
    counts = torch.arange(200.0, dtype=torch.float64)
    for at, log_rate in enumerate(OUTPUT):
        p = torch.distributions.Poisson(log_rate.exp()).log_prob(counts).exp()
        factor = output_factor("poisson", OUTPUT, PRECISION)
        torch.testing.assert_close((factor @ factor.T)[at, at], (p * (counts - log_rate.exp()) ** 2).sum())
    value = negative_log_likelihood("poisson", OUTPUT, counts[:3], PRECISION)
    torch.testing.assert_close(value, nn.PoissonNLLLoss(reduction="sum")(OUTPUT, counts[:3]))
