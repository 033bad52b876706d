"""What is said of dead weights where little is known, nothing can be known, or a look at data fails."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from tests.training import net

pytestmark = pytest.mark.usefixtures("one_thread")


def sparse_inputs(step):
    x = torch.zeros(4, 20)
    x[:, step % 20] = 1
    return x


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 2))


def go_on(model, optimizer, steps, begin=0):
    for step in range(begin, begin + steps):
        optimizer.zero_grad()
        F.cross_entropy(model(sparse_inputs(step)), torch.tensor([0, 1, 0, 1])).backward()
        optimizer.step()


@pytest.fixture
def trained():
    model = wide()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer)
    go_on(model, optimizer, 3)
    return model, pruner


DATA = [(torch.randn(8, 20), torch.tensor([0, 1] * 4)) for _ in range(3)]


def test_what_is_reached_but_has_no_square_yet_is_no_error():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer)
    go_on(model, optimizer, 100)
    assert not any(dead.any() for dead in pruner.dead().values())
    assert pruner.prune(0.5).kept == 88


def test_the_same_after_a_look_at_data(trained):
    _, pruner = trained
    assert pruner.observe(DATA, F.cross_entropy) == {"0.weight": 0, "2.weight": 0}
    assert pruner.prune(0.5).kept == 88


def failing():
    yield DATA[0]
    raise OSError("the disk")


@pytest.mark.parametrize("batches", [[], failing()], ids=["empty", "failing"])
def test_a_failed_look_tells_nothing(trained, batches):
    _, pruner = trained
    pruner.observe(DATA, F.cross_entropy)
    with pytest.raises((ValueError, OSError)):
        pruner.observe(batches, F.cross_entropy)
    assert pruner.dead() == {}, "it is unknown again"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda o, y: F.cross_entropy(o.detach(), y), "no batch gave a loss that has a gradient"),
        (lambda o, y: F.cross_entropy(o, y) * torch.nan, "is nan.*finite"),
        (lambda o, y: 3.0, "is a float.*finite"),
        (lambda o, y: F.cross_entropy(o, y, reduction="none") / 0, r"a tensor \(\d+,\) with NaN or inf"),
    ],
)
def test_a_loss_that_tells_nothing_is_refused(trained, loss, said):
    _, pruner = trained
    with pytest.raises(ValueError, match=said):
        pruner.observe(DATA, loss)
    assert pruner.dead() == {}


def test_a_look_within_inference_mode(trained):
    _, pruner = trained
    with torch.inference_mode():
        assert pruner.observe(DATA, F.cross_entropy) == {"0.weight": 0, "2.weight": 0}


def test_a_frozen_model_has_nothing_to_look_at():
    model = net().requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad_"):
        pw.Pruner(model).observe(DATA, F.cross_entropy)


@pytest.mark.parametrize("choices", [{}, {"criterion": "magnitude"}], ids=str)
def test_where_nothing_is_known_nothing_is_said(choices):
    assert pw.Pruner(wide(), **choices).dead() == {}


def test_before_a_hundred_steps_the_own_average_calls_nothing_dead():
    model = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer)
    go_on(model, optimizer, 95)
    assert pruner.dead() == {}


def test_an_unfrozen_layer_has_an_average_of_its_own_steps():
    model = wide()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer)
    go_on(model, optimizer, 200)
    model[0].requires_grad_(True)
    go_on(model, optimizer, 8, 200)
    report = pruner.prune(0.5, dry_run=True)
    assert report.criterion == "Magnitude()"


def test_pruners_that_are_gone_listen_no_more():
    model = wide()
    for _ in range(5):
        pw.Pruner(model, criterion="m&u").detach()
        pw.Pruner(model).choose(0.5)
    gc.collect()
    assert not model[0].weight._backward_hooks


def test_a_sigma_of_one_pruning_waits_for_a_pass_of_its_own():
    model = wide()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer)
    go_on(model, optimizer, 110)
    report = pruner.prune(0.5, uncertainty=pw.SecondMoment(samples=60000, batch_size=60), dry_run=True)
    assert any("of 1,000" in note for note in report.notes)
