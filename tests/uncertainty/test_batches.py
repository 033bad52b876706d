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


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_limit_is_of_batches(estimator):
    first = estimate(estimator, list(Streamed("cross_entropy"))[:5], "cross_entropy")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    found = estimator.estimate(model, Streamed("cross_entropy"), F.cross_entropy, limit=5)
    assert all(torch.equal(sigma, first[name]) for name, sigma in found.items())
    with pytest.raises(ValueError, match="limit=0.*at least 1"):
        estimator.estimate(model, Streamed("cross_entropy"), F.cross_entropy, limit=0)


class Named(nn.Module):
    """Two inputs by name, outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(2, 5)

    def forward(self, left, right, scale=1.0):
        return {"logits": self.first(left).tanh() + scale * self.second(right), "other": left}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_dicts_and_tuples_of_several_inputs_give_what_one_by_hand_gives(estimator, loss):
    class Joined(Named):
        def forward(self, x):
            return super().forward(x[:, :4], x[:, 4:])["logits"]

    torch.manual_seed(0)
    x, y = torch.randn(24, 6), torch.randint(5, (24,)) if loss == "cross_entropy" else torch.randn(24, 5)
    named, joined = Named(), Joined()
    joined.load_state_dict(named.state_dict())
    expected = estimator.estimate(joined, [(x[:9], y[:9]), (x[9:], y[9:])], LOSSES[loss])
    pairs = [(x[:9, :4], x[:9, 4:], y[:9]), (x[9:, :4], x[9:, 4:], y[9:])]
    dicts = [{"left": a, "right": b, "scale": 1.0, "labels": c} for a, b, c in pairs]
    for given in (pairs, dicts):
        for name, sigma in estimator.estimate(named, given, LOSSES[loss]).items():
            torch.testing.assert_close(sigma, expected[name], rtol=1e-4, atol=0)


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if not isinstance(e, LayerLeastSquares)], ids=repr)
def test_what_is_missing_or_cannot_be_told_is_named(estimator):
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"a tensor \(5, 4\), has no targets"):
        estimator.estimate(model, [x], F.cross_entropy)
    with pytest.raises(TypeError, match="a tuple of 3 are tuple.*pairs"):
        estimator.estimate(model, [(x, x, x)], F.cross_entropy)
    with pytest.raises(TypeError, match=r"Linear.*'x', 'y'.*takes \(input"):
        estimator.estimate(model, [{"x": x, "y": torch.zeros(5).long()}], F.cross_entropy)
    with pytest.raises(ValueError, match=r"a tensor \(5, 3\).*loss="):
        estimator.estimate(model, [(x, torch.zeros(5).long())])

    class Text(nn.Linear):
        def forward(self, input):
            return "text"

    with pytest.raises(ValueError, match="returned a str"):
        estimator.estimate(Text(4, 3), [(x, torch.zeros(5).long())], F.cross_entropy)
