"""Which losses are likelihoods, and of which samples."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.uncertainty import FisherDiagonal, InverseFisher, Sandwich
from tests.uncertainty.helpers import CONTINUOUS, batches, linear

pytestmark = pytest.mark.usefixtures("one_thread")

ESTIMATORS = [InverseFisher(inverse="damped"), Sandwich(inverse="damped"), FisherDiagonal(), FisherDiagonal("model")]


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="loss 'hinge'.*cross_entropy, binary_cross_entropy, squared_error"):
        InverseFisher().estimate(linear(np.zeros(5)), batches(CONTINUOUS), "hinge")


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.MSELoss(reduction="sum"), nn.CrossEntropyLoss(torch.ones(2))]
)
def test_a_loss_that_is_no_plain_likelihood_is_refused(loss):
    with pytest.raises(ValueError, match=f"{type(loss).__name__}.*use its defaults"):
        InverseFisher().estimate(linear(np.zeros(5)), batches(CONTINUOUS), loss)


def test_labels_by_position_are_refused():
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(2,\).*positions laid out as samples"):
        FisherDiagonal().estimate(model, [(torch.randn(8, 4), torch.zeros(8, 2).long())], F.cross_entropy)


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
