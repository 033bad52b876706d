"""Data are read a batch at a time, and again where another pass is needed."""

import gc
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from prunewald.uncertainty import FisherDiagonal, InverseFisher, LayerLeastSquares, Sandwich
from prunewald.uncertainty.batches import Samples

pytestmark = pytest.mark.usefixtures("one_thread")

LOSSES = {"cross_entropy": F.cross_entropy, "squared_error": F.mse_loss}
ESTIMATORS = [
    FisherDiagonal(),
    FisherDiagonal("model"),
    LayerLeastSquares(),
    InverseFisher(inverse="damped"),
    Sandwich(inverse="damped"),
]


class Streamed:
    """Twelve batches, made as they are asked for; knows how many of them were in memory at once."""

    def __init__(self, loss):
        self.loss, self.alive, self.most, self.passes = loss, [], 0, 0

    def __iter__(self):
        self.passes += 1
        rng = np.random.default_rng(0)
        for _ in range(12):
            # The memory of the tensor is that of the array, which lives as long as any view of the tensor does.
            inputs = rng.normal(size=(8, 4)).astype(np.float32)
            self.alive = [kept for kept in [*self.alive, ref(inputs)] if kept() is not None]
            self.most = max(self.most, len(self.alive))
            targets = rng.integers(0, 3, 8) if self.loss == "cross_entropy" else rng.normal(size=(8, 3))
            x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
            del inputs
            yield x, y if self.loss == "cross_entropy" else y.float()


def estimate(estimator, batches, loss):
    torch.manual_seed(0)
    return estimator.estimate(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), batches, LOSSES[loss])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_loader_is_streamed(estimator, loss):
    gc.collect()
    loader = Streamed(loss)
    streamed = estimate(estimator, loader, loss)
    assert loader.most <= 3, f"{loader.most} of 12 batches were in memory at once"
    kept = estimate(estimator, list(Streamed(loss)), loss)
    assert all(torch.equal(sigma, kept[name]) for name, sigma in streamed.items())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_generator_is_read_once_and_gives_the_same(estimator, loss):
    loader = Streamed(loss)
    once = estimate(estimator, iter(loader), loss)
    assert loader.passes == 1
    kept = estimate(estimator, list(Streamed(loss)), loss)
    assert all(torch.equal(sigma, kept[name]) for name, sigma in once.items())


@pytest.mark.parametrize(("loss", "passes"), [("cross_entropy", 1), ("squared_error", 2)])
def test_the_fisher_diagonal_reads_no_more_than_it_needs(loss, passes):
    loader = Streamed(loss)
    estimate(FisherDiagonal(), loader, loss)
    assert loader.passes == passes


def test_a_generator_is_not_kept_where_one_pass_is_enough():
    gc.collect()
    loader = Streamed("cross_entropy")
    estimate(FisherDiagonal(), iter(loader), "cross_entropy")
    assert loader.most <= 3


def test_a_shuffled_loader():
    data = TensorDataset(torch.randn(40, 4, generator=torch.manual_seed(1)), torch.arange(40) % 3)
    shuffled = estimate(FisherDiagonal(), DataLoader(data, batch_size=8, shuffle=True), "cross_entropy")
    straight = estimate(FisherDiagonal(), DataLoader(data, batch_size=8), "cross_entropy")
    for name, sigma in shuffled.items():
        torch.testing.assert_close(sigma, straight[name])


def test_counts_and_the_first_sample():
    x = torch.arange(12.0).view(6, 2)
    y = torch.tensor([-100, 0, 1, -100, 2, 0])
    samples = Samples([(x[:1], y[:1]), (x[1:4], y[1:4]), (x[4:], y[4:])], nn.Identity(), F.cross_entropy, passes=None)
    assert samples.first.args[0].tolist() == [[2.0, 3.0]]
    assert samples.count == 4
    assert [len(one) for one, _ in samples] == [2, 2]


def test_what_gives_nothing_at_a_second_pass_is_an_error():
    class Spent:
        def __init__(self):
            self.left = [(torch.randn(8, 4), torch.randn(8, 3))]

        def __iter__(self):
            while self.left:
                yield self.left.pop()

    with pytest.raises(ValueError, match="Spent.*only once"):
        estimate(FisherDiagonal(), Spent(), "squared_error")
