"""What is measured for many networks is what a Pruner of one's own would have gathered of each."""

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunewald as pw
from prunewald.ensemble import SGD, RMSprop, train_many
from prunewald.ensemble.draws import order
from prunewald.ensemble.replicas import build
from prunewald.lab.measuring import Gathered, measured

pytestmark = pytest.mark.usefixtures("one_thread")
EPOCHS, BATCH = 3, 20


def net() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(60, 6, generator=generator), torch.randint(3, (60,), generator=generator)


@pytest.mark.parametrize("what", ["movement", "platon"])
@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_gathered_is_what_a_pruner_sees_of_the_last_steps(what: str, how: Literal["vmap", "loop"]) -> None:
    x, y = data()
    last = 4
    quiet = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    own = build(quiet, 7)
    found = train_many(
        quiet, x, y, seeds=[7, 8], epochs=EPOCHS, batch_size=BATCH, optimizer=RMSprop(lr=1e-2),
        collect=Gathered(what, last, EPOCHS * 3), how=how, progress=False,
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(own.parameters(), lr=1e-2)
    batches = [rows for epoch in range(EPOCHS) for rows in order([7], 60, epoch)[0].tensor_split(3)]
    pruner = None
    for step, rows in enumerate(batches):
        if step == len(batches) - last:
            pruner = pw.Pruner(own, optimizer, criterion=what)
        optimizer.zero_grad()
        F.cross_entropy(own(x[rows]), y[rows]).backward()
        optimizer.step()
    assert pruner is not None
    for name, scores in pruner.scores().items():
        torch.testing.assert_close(found.estimates[0][name].sigma[0], scores, rtol=1e-3, atol=1e-6)
        assert found.estimates[0][name].dead is None


@pytest.mark.parametrize("what", ["taylor", "obd", "snip", "wanda"])
def test_measured_by_a_pass_in_eval_mode(what: str) -> None:
    torch.manual_seed(0)
    model, (x, y) = net(), data()
    batches = [(x[:30], y[:30]), (x[30:], y[30:])]
    found = measured(what, model, batches, "dense")
    gradients = [torch.autograd.grad(F.cross_entropy(model(a), b), model[3].weight)[0] for a, b in batches]
    weight, inputs = model[3].weight.detach(), torch.relu(model[0](x)).detach()
    expected = {
        "taylor": (weight * torch.stack(gradients).mean(0)).abs(),
        "obd": weight.square() * torch.stack(gradients).square().mean(0) / 2,
        "snip": (weight * gradients[-1]).abs(),
        "wanda": weight.abs() * inputs.square().sum(0).sqrt(),
    }
    torch.testing.assert_close(found["3.weight"], expected[what])
    assert list(found) == ["0.weight", "3.weight"]


def test_fisher_is_scaled_to_the_spread_of_each_layer() -> None:
    torch.manual_seed(0)
    model, (x, y) = net(), data()
    with torch.no_grad():
        model[0].weight[2], model[0].bias[2] = 0.0, -1.0  # a dead unit
    found = measured("fisher", model, [(x, y)], "dense")
    error = pw.uncertainty.FisherDiagonal(labels="model").estimate(model.eval(), [(x, y)], F.cross_entropy)
    for name, sigma in found.items():
        living = error[name].isfinite()
        weight = model.get_parameter(name).detach()
        assert float(sigma[living].median()) == pytest.approx(float(weight.std()), rel=1e-4)
        ratio = sigma[living] / error[name][living]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=0)
    assert bool(found["0.weight"][2].isinf().all())


def test_dense_layers_or_all_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    batches = [(torch.randn(10, 1, 6, 6), torch.arange(10) % 3)]
    assert list(measured("wanda", model, batches, "dense")) == ["2.weight"]
    assert list(measured("wanda", model, batches, "all")) == ["0.weight", "2.weight"]


def test_gathering_goes_with_any_optimizer() -> None:
    x, y = data()
    found = train_many(
        net, x, y, seeds=[0], epochs=2, optimizer=SGD(lr=0.1), collect=Gathered("movement", 1, 2), progress=False
    )
    assert bool(found.sigma["0.weight"].abs().sum() > 0)
