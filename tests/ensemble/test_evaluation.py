"""Many models evaluated at once, against each of them alone."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, accuracies, evaluate, evaluation, train_many

pytestmark = pytest.mark.usefixtures("one_thread")

HOW = pytest.mark.parametrize("how", ["vmap", "loop"])


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(12, 4),
    ).double()


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(50, 1, 6, 6, generator=g, dtype=torch.float64), torch.randint(0, 4, (50,), generator=g)


def trained(make=net, replicas=5):
    return train_many(make, *data(), seeds=range(replicas), epochs=2, optimizer=SGD(lr=0.1), how="loop", progress=False)


def by_hand(result, x, r):
    with torch.no_grad():
        out: Tensor = result.module(r).eval()(x)
    return out


@HOW
def test_each_replica_as_by_itself(how):
    result, (x, y) = trained(), data()
    losses = partial(F.cross_entropy, reduction="none")
    right = result.evaluate(x, y, how=how, batch_size=20, chunk=2)
    values = result.evaluate(x, y, losses, how=how, batch_size=7)
    shares = result.accuracy(x, y, how=how)
    assert (right.shape, right.dtype, shares.dtype) == ((5, 50), torch.bool, torch.float64)
    for r in range(5):
        out = by_hand(result, x, r)
        assert torch.equal(right[r], out.argmax(1) == y)
        torch.testing.assert_close(values[r], losses(out, y))
        assert shares[r] == (out.argmax(1) == y).double().mean()
    assert torch.equal(accuracies(net, result.state, x, y, how=how), shares)
    assert len(shares.unique()) > 1


@HOW
def test_rows_of_each_replica(how):
    result, (x, y) = trained(), data()
    rows = torch.randint(0, 50, (5, 33), generator=torch.Generator().manual_seed(1))
    right = evaluate(result.make, result.state, x, y, rows=rows, how=how, batch_size=10, chunk=3)
    for r in range(5):
        assert torch.equal(right[r], by_hand(result, x[rows[r]], r).argmax(1) == y[rows[r]])


@HOW
def test_nothing_that_is_given_changes(how):
    model = net()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result, (x, y) = trained(model), data()
    before = {name: tensor.clone() for name, tensor in result.state.items()}
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    accuracies(lambda: model, result.state, x, y, how=how)
    result.accuracy(x, y, how=how)
    assert torch.equal(torch.rand(1), wanted)
    assert model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in result.state.items())


@HOW
def test_dropout_that_never_sleeps_does(how):
    class Awake(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(F.dropout(x, 0.5))
            return out

    x, y = data()
    state = {name: tensor[None] for name, tensor in net().eval().state_dict().items()}
    awake, asleep = (evaluate(make, state, x, y, how=how) for make in (lambda: Awake(*net()), net))
    assert torch.equal(awake, asleep)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.flatten(1))
        return -x if x.mean() > 0 else x


def test_what_cannot_be_vectorised_is_evaluated_one_by_one(monkeypatch, capsys):
    result, (x, y) = trained(Branching), data()
    with pytest.raises(RuntimeError, match="data-dependent"):
        result.evaluate(x, y, how="vmap")
    monkeypatch.setattr(evaluation, "_vectorised", lambda device: True)
    right = result.evaluate(x, y)
    assert "evaluated one by one" in capsys.readouterr().err
    assert all(torch.equal(right[r], by_hand(result, x, r).argmax(1) == y) for r in range(5))


def test_chunks_fit_into_memory(monkeypatch):
    result, (x, y) = trained(), data()
    sizes: list[int] = []
    chunk = evaluation._chunk

    def watched(task, first, last):
        sizes.append(last - first)
        if last - first > 1:
            raise torch.cuda.OutOfMemoryError
        return chunk(task, first, last)

    monkeypatch.setattr(evaluation, "_chunk", watched)
    assert torch.equal(result.accuracy(x, y, how="vmap", chunk=4), result.accuracy(x, y, how="loop"))
    assert sizes == [4, 2, 1, 1, 1, 1, 1]
    sizes.clear()
    monkeypatch.setattr(evaluation, "memory", lambda device: 200_000)
    result.accuracy(x, y, how="vmap")
    assert 1 <= sizes[0] < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": torch.zeros(3, 1, 6, 6)}, "x has 3 rows and y has 50"),
        ({"state": {}}, "'0.bias'"),
        ({"state": {**net().state_dict(), "7.weight": torch.zeros(1)}}, "'7.weight'"),
        ({"state": net().state_dict()}, r"'0.weight'\] has shape \(3, 1, 3, 3\).*\(R, 3, 1, 3, 3\)"),
        ({"rows": torch.zeros(2, 9, dtype=torch.long)}, r"rows has shape \(2, 9\).*\(5, m\)"),
        ({"rows": torch.full((5, 9), 50)}, "rows has rows 50 to 50.*from 0 to 49"),
        ({"metric": F.cross_entropy}, r"metric gives \(\).*each sample"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"how": "fast"}, "how='fast'.*'vmap'"),
    ],
)
def test_wrong_arguments(options, message):
    x, y = data()
    with pytest.raises(ValueError, match=message):
        evaluate(**{"make_model": net, "state": trained().state, "x": x, "y": y} | options)
