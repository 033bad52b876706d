"""Gradual pruning: the schedule's levels are reached at its steps, by optimizer.step() alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import prunewald as pw
from prunewald.util.registry import known
from tests.pruning.helpers import CUBIC, adam, go
from tests.resuming import same
from tests.training import closure_step, fused, loss_of, minus_zero_or_worse, net, one_step, sgd

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]

SIZES = {"0.weight": 48, "2.weight": 32}


def pruned_share(model: nn.Module, name: str) -> float:
    return float((model.get_parameter(name) == 0).double().mean())


# ---- at the steps of a training ----------------------------------------------------------------------------------


def assert_levels(pruner: pw.Pruner, step: Callable[[int], None], schedule: Any = CUBIC, last: int = 12) -> None:
    """Train, and see after each step the zeros of the last level that was due."""
    level = 0.0
    for number in range(1, last + 1):
        step(number)
        level = schedule(number) or level
        assert pruner.steps == number
        gone = {name: round(pruned_share(pruner.model, name) * size) for name, size in SIZES.items()}
        if pruner.scope is None:
            assert sum(gone.values()) == round(level * 80), number
        else:
            assert gone == {name: round(level * size) for name, size in SIZES.items()}, number
        for name in SIZES:
            assert not minus_zero_or_worse(pruner.model.get_parameter(name), ~pruner.masks[name])
    assert level == schedule.final


CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "rolling": {"uncertainty": pw.PseudoBootstrap(last=4)},
    "second-moment": {"uncertainty": pw.SecondMoment(), "criterion": "wald"},
    "dict": {
        "uncertainty": {name: torch.ones(size[::-1]) for name, size in (("0.weight", (6, 8)), ("2.weight", (8, 4)))}
    },
    **{name: {"criterion": name} for name in sorted(known("criterion"))},
}


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_level_is_reached_at_its_step(choice, make):
    model = net()
    optimizer = make(model)
    pruner = pw.Pruner(model, optimizer, schedule=CUBIC, **CHOICES[choice])
    assert_levels(pruner, lambda step: one_step(model, optimizer, step))
    assert pruner.report is not None
    assert pruner.report.sparsity == pruner.sparsity


def test_batch_means():
    schedule = pw.Cubic(0.8, begin=4, end=12, every=3)
    pruner = pw.Pruner(net(), uncertainty=pw.BatchMeans(length=2), schedule=schedule)
    assert_levels(pruner, lambda step: own_step(pruner, step), schedule)


@torch.no_grad()
def own_step(pruner: pw.Pruner, step: int) -> None:
    pruner.model.zero_grad()
    with torch.enable_grad():
        loss_of(pruner.model, step).backward()
    for param in pruner.model.parameters():
        assert param.grad is not None
        param.sub_(0.1 * param.grad + 0.001)
    pruner.apply_()


def test_without_an_optimizer_apply_is_the_step():
    pruner = pw.Pruner(net(), criterion="magnitude", scope="layer", schedule=CUBIC)
    assert_levels(pruner, lambda step: own_step(pruner, step))


def test_with_an_optimizer_apply_is_no_step():
    pruner = pw.Pruner(net(), sgd(net()), criterion="magnitude", schedule=CUBIC)
    for _ in range(5):
        pruner.apply_()
    assert (pruner.steps, pruner.sparsity) == (0, 0.0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS"])
def test_a_closure(name):
    model = net()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=4), schedule=CUBIC)
    assert_levels(pruner, lambda step: closure_step(model, optimizer, step))


@pytest.mark.parametrize(
    "choice", [{}, {"uncertainty": pw.PseudoBootstrap(last=4)}, {"criterion": "movement"}], ids=str
)
def test_several_optimizers_count_the_steps_of_the_last(choice):
    model = net()
    first, second = sgd(model[0]), adam(model[2])
    pruner = pw.Pruner(model, [first, second], schedule=CUBIC, **choice)

    def step(number: int) -> None:
        model.zero_grad()
        loss_of(model, number).backward()
        first.step()
        second.step()

    assert_levels(pruner, step)


@pytest.mark.slow
def test_a_compiled_step():
    model = net()
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, schedule=CUBIC)
    compiled = torch.compile(optimizer.step, backend="eager")

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, number).backward()
        compiled()

    assert_levels(pruner, step)


@pytest.mark.parametrize("form", ["fused", "unfused"])
def test_steps_that_a_scaler_skips_do_not_count(form):
    model = net()
    optimizer = fused("Adam", model.parameters(), lr=0.01) if form == "fused" else adam(model)
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=4), schedule=CUBIC)
    scaler = GradScaler("cpu", init_scale=1024.0)

    def scaled(number: int, factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(loss_of(model, number) * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    def step(number: int) -> None:
        reports = pruner.report
        for _ in range(1 + number % 2):
            scaled(number, torch.inf)
        assert pruner.report is reports, "a skipped step pruned"
        scaled(number, 1.0)

    assert_levels(pruner, step)


@pytest.mark.parametrize("scope", sorted(known("scope")))
def test_every_scope(scope):
    model = net()
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, scope=scope, schedule=pw.Cubic(0.75, end=8, every=1))
    before = pruner.masks
    for step in range(10):
        one_step(model, optimizer, step)
        assert all((mask <= before[name]).all() for name, mask in pruner.masks.items())
        before = pruner.masks
    assert pruner.sparsity == pytest.approx(0.75, abs=0.06)  # a row of 6 weights has no 4.5


def test_n_of_m_ends_in_exactly_two_of_four():
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, pattern="n-of-m", schedule=pw.Cubic(0.5, end=8, every=3))
    shares = []
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().sum().backward()
        optimizer.step()
        shares.append(pruner.sparsity)
    assert 0 < shares[2] < shares[5] < shares[7] == shares[8] == 0.5
    for mask in pruner.masks.values():
        assert (mask.reshape(-1, 4).sum(1) == 2).all()


def test_any_function_of_the_step_is_a_schedule():
    model = net()
    pruner = pw.Pruner(model, sgd(model), schedule={3: 0.25, 5: 0.5}.get)
    go(pruner, range(3))
    assert pruner.sparsity == 0.25
    go(pruner, range(3, 6))
    assert pruner.sparsity == 0.5


def test_a_function_that_asks_for_nonsense_is_told_so():
    model = net()
    pruner = pw.Pruner(model, sgd(model), schedule={2: 50}.get)
    with pytest.raises(ValueError, match="sparsity=50.*0.9 prunes 90 %"):
        go(pruner, range(3))
    assert pruner.sparsity == 0


def test_a_short_name_is_a_schedule():
    model = net()
    assert pw.Pruner(model, sgd(model), schedule="cubic").schedule == pw.Cubic()


# ---- with what was gathered --------------------------------------------------------------------------------------


def test_a_rolling_window_runs_on_over_scheduled_prunings():
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=6), schedule=CUBIC)
    snapshots = []
    for step in range(8):  # prunes after steps 2, 5 and 8
        one_step(model, optimizer, step)
        snapshots.append(model[0].weight.detach().clone())
    alive = pruner.masks["0.weight"]
    expected = torch.stack(snapshots[2:]).std(0)
    torch.testing.assert_close(pruner.sigma()["0.weight"][alive], expected[alive], rtol=1e-5, atol=1e-9)


def test_the_state_of_a_criterion_runs_on():
    model = net()
    optimizer = sgd(model, momentum=0.0)
    pruner = pw.Pruner(model, optimizer, criterion="movement", schedule=CUBIC)
    total = torch.zeros(8, 6)
    for step in range(9):
        before = model[0].weight.detach().clone()
        one_step(model, optimizer, step)
        total -= before * model[0].weight.grad
    alive = pruner.masks["0.weight"]
    torch.testing.assert_close(pruner.scores()["0.weight"][alive], total[alive])


def test_a_scheduled_pruning_chooses_what_prune_would():
    model, other = net(), net()
    optimizer, hand = sgd(model), sgd(other)
    scheduled = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=5), schedule=pw.Stairs((0.7,), begin=5))
    plain = pw.Pruner(other, hand, uncertainty=pw.PseudoBootstrap(last=5))
    go(scheduled, range(5))
    go(plain, range(5))
    assert plain.prune(0.7) == scheduled.report
    assert same(plain.masks, scheduled.masks)
    go(scheduled, range(5, 8))
    go(plain, range(5, 8))
    assert same(model.state_dict(), other.state_dict())


def test_momentum_of_what_is_pruned_is_forgotten():
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=CUBIC)
    go(pruner, range(2))
    dead = ~pruner.masks["0.weight"]
    assert dead.any()
    assert not optimizer.state[model[0].weight]["momentum_buffer"][dead].any()
    assert not model[0].weight.grad[dead].any()


def test_a_level_that_changes_nothing_leaves_the_history_of_lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=pw.Cubic(0.6, end=20, every=1))
    pruner.prune(0.7)
    for step in range(3):
        closure_step(model, optimizer, step)
    assert optimizer.state[model[0].weight]["old_dirs"]


def test_what_was_pruned_by_hand_stays_until_the_schedule_is_above_it():
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", scope="layer", schedule=CUBIC)
    pruner.prune({"0.weight": 0.75})
    by_hand = pruner.masks["0.weight"]
    for step in range(1, 9):
        one_step(model, optimizer, step)
        level = CUBIC(step) or 0.0
        if level:
            assert pruned_share(model, "0.weight") == max(0.75, round(level * 48) / 48)
            assert pruned_share(model, "2.weight") == round(level * 32) / 32
        assert (pruner.masks["0.weight"] <= by_hand).all()
    go(pruner, range(8, 9))
    assert pruned_share(model, "0.weight") == round(0.8 * 48) / 48


@pytest.mark.parametrize("scope", ["global", "row"])
def test_what_was_pruned_by_hand_in_other_scopes(scope):
    model = net()
    pruner = pw.Pruner(model, sgd(model), criterion="magnitude", scope=scope, schedule=CUBIC)
    pruner.prune({"0.weight": 0.7})
    by_hand = pruner.masks["0.weight"]
    go(pruner, range(9))
    assert (pruner.masks["0.weight"] <= by_hand).all()
    assert pruner.sparsity == pytest.approx(0.8, abs=0.05)
