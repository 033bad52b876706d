"""GradScaler's skipped steps are as if they had never been: not held wrongly, not counted, not collected."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

import prunewald as pw
from tests.training import fused, loss_of, minus_zero_or_worse, net

pytestmark = pytest.mark.usefixtures("one_thread")

GOOD = list(range(20))  # the batches that count
BAD = -1  # one whose loss overflows
WINDOW = pw.PseudoBootstrap(last=6, total_steps=len(GOOD))
# No momentum: torch's fused SGD leaves its buffer uninitialised if the first step is skipped (seen on 2.4 and 2.13).
OPTIMIZERS = {"SGD": {"lr": 0.1}, "Adam": {"lr": 0.01}, "Adagrad": {"lr": 0.1}}
ESTIMATORS = {
    "window": WINDOW,
    "every": pw.PseudoBootstrap(every=2),
    "every-last": pw.PseudoBootstrap(every=2, last=3, total_steps=len(GOOD)),
    "second-moment": pw.SecondMoment(),
    "standard-error": pw.SecondMoment(samples=100, batch_size=16),
}

# The bad batch comes before the first step, before, at the start of, inside and at the end of the window.
each_place = pytest.mark.parametrize("bad", [[0], [9], [14], [17], [20], [0, 9, 14, 14, 19]], ids=str)
each_form = pytest.mark.parametrize("form", ["fused", "unfused"])


def schedule(bad: list[int], good: list[int] = GOOD) -> list[int]:
    """The good batches with bad ones put in at some places."""
    batches = list(good)
    for place in sorted(bad, reverse=True):
        batches.insert(place, BAD)
    return batches


def optimizer_of(name: str, form: str, model: nn.Module) -> torch.optim.Optimizer:
    if form == "fused":
        return fused(name, model.parameters(), **OPTIMIZERS[name])
    made: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), **OPTIMIZERS[name])
    return made


def scaled_step(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: GradScaler, batch: int) -> None:
    optimizer.zero_grad()
    loss = loss_of(model, max(batch, 0)) * (torch.inf if batch == BAD else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def run(batches: list[int], name: str, form: str, uncertainty: Any) -> tuple[nn.Module, Any, pw.Pruner]:
    model = net()
    optimizer = optimizer_of(name, form, model)
    pruner = pw.Pruner(model, optimizer, uncertainty=uncertainty)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for batch in batches:
        scaled_step(model, optimizer, scaler, batch)
    assert scaler.get_scale() == 1024.0 * 0.5 ** batches.count(BAD)
    return model, optimizer, pruner


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], rtol: float = 0, atol: float = 0) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=rtol, atol=atol, msg=name)


@each_form
@each_place
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_leaves_no_trace(name, estimator, bad, form):
    model, _, pruner = run(schedule(bad), name, form, ESTIMATORS[estimator])
    plain, _, expected = run(GOOD, name, form, ESTIMATORS[estimator])
    assert_same(model.state_dict(), plain.state_dict())
    # A fused window may begin to listen a step early and so measure from another snapshot: the last digit may differ.
    assert_same(pruner.sigma(), expected.sigma(), rtol=1e-5, atol=1e-9)
    assert_same(pruner.dead(), expected.dead())


@each_form
@pytest.mark.parametrize("bad", [[0], [15], [20]], ids=str)
def test_a_skipped_step_is_not_counted(form, bad):
    _, _, pruner = run(schedule(bad), "SGD", form, WINDOW)
    assert int(pruner.state_dict()["states"][0]["step"]) == len(GOOD)
    pruner.prune(0.8)  # warns, were it not at total_steps


@each_form
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("bad", [[], [0], [37], [40], [0, 9, 29, 29, 38]], ids=str)
def test_a_rolling_window_stays_right_to_ten_percent(form, bad, every):
    model = net()
    optimizer = optimizer_of("Adam", form, model)
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=10, every=every))
    scaler, snapshots = GradScaler("cpu", init_scale=1024.0), []
    for batch in schedule(bad, list(range(40))):
        scaled_step(model, optimizer, scaler, batch)
        if batch != BAD and batch % every == every - 1:
            snapshots.append(model[0].weight.detach().clone())
    sigma = pruner.sigma()["0.weight"]
    assert any(torch.allclose(sigma, torch.stack(snapshots[-n:]).std(0), 1e-5, 1e-9) for n in (9, 10, 11))
    assert 2 * len(pruner.state_dict()["states"][0]["blocks"]) + 1 <= 15  # vectors


@each_form
@pytest.mark.parametrize("uncertainty", [WINDOW, pw.PseudoBootstrap(last=10), pw.SecondMoment()], ids=str)
def test_a_gradient_of_a_skipped_step_is_no_movement(form, uncertainty):
    """The first input is there in the bad batch only, so its weights stay dead."""
    model = net()
    optimizer = optimizer_of("SGD", form, model)
    pruner = pw.Pruner(model, optimizer, uncertainty=uncertainty)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for batch in schedule([17], GOOD * 6):
        blind = model[0].register_forward_pre_hook(lambda _, args: args[0] * torch.tensor([0.0, 1, 1, 1, 1, 1]))
        if batch == BAD:
            blind.remove()
        scaled_step(model, optimizer, scaler, batch)
        blind.remove()
    assert torch.equal(pruner.dead()["0.weight"], (torch.arange(6) == 0).expand(8, 6))


@each_form
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_hold_through_skipped_steps(name, form):
    model, optimizer, pruner = run(GOOD, name, form, WINDOW)
    pruner.prune(0.8)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for batch in (21, BAD, 22, BAD, BAD, 23):
        before = model[0].weight.detach().clone()
        scaled_step(model, optimizer, scaler, batch)
        assert torch.equal(before, model[0].weight) == (batch == BAD)
        assert not any(minus_zero_or_worse(model.get_parameter(n), ~mask) for n, mask in pruner.masks.items())


@each_form
def test_an_infinite_gradient_at_pruned_places_alone_skips_nothing(form):
    model, optimizer, pruner = run(GOOD, "SGD", form, WINDOW)
    pruner.prune(0.8)
    dead = ~pruner.masks["0.weight"]
    before = model[0].weight.detach().clone()
    scaler = GradScaler("cpu", init_scale=1024.0)
    handle = model[0].weight.register_hook(lambda grad: grad.masked_fill(dead, torch.inf))
    scaled_step(model, optimizer, scaler, 21)
    handle.remove()
    assert scaler.get_scale() == 1024.0
    assert not torch.equal(model[0].weight, before)
    assert not minus_zero_or_worse(model[0].weight, dead)
