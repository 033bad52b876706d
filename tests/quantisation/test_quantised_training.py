"""Trained quantisation of either kind: with every optimizer, down to a lower loss, and through later prunings."""

import copy
from typing import Any

import pytest
import torch

import prunewald as pw
from prunewald.quantisation import LinearValues, SharedValues
from tests.quantisation.helpers import assert_linear, assert_tied, pruned, unseen_loss
from tests.training import cases, one_step, train

pytestmark = pytest.mark.usefixtures("one_thread")

Kind = type[SharedValues] | type[LinearValues]
CHECKS: dict[Kind, Any] = {SharedValues: assert_tied, LinearValues: assert_linear}


def each_kind(shared: int, linear: int) -> Any:
    """Either kind, with its number of values or bits."""
    return pytest.mark.parametrize(("kind", "level"), [(SharedValues, shared), (LinearValues, linear)])


def moving(quantised: Any) -> dict[str, torch.Tensor]:
    """What training moves, by target: the shared values, or those in full precision."""
    state = quantised.state_dict()
    return copy.deepcopy(state["codebooks"] if isinstance(quantised, SharedValues) else state["full"])


@each_kind(4, 5)
@pytest.mark.parametrize("case", list(cases()))
def test_with_every_optimizer(case, kind, level):
    model = case.model()
    optimizer = case.optimizer(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", targets=case.targets())
    for step in range(3):
        case.step(model, optimizer, step)
    pruner.prune(0.5)
    quantised = kind(pruner, level, **({"reduce": "mean"} if kind is SharedValues else {}))
    before = moving(quantised)
    for step in range(3, 8):
        case.step(model, optimizer, step)
        CHECKS[kind](quantised, level)
    for name, values in moving(quantised).items():
        moved = values != before[name]
        assert values.isfinite().all()
        assert moved.all() if kind is SharedValues else moved[quantised.codes()[name] != 0].any()


@pytest.mark.parametrize(
    ("kind", "level", "lr", "share"), [(SharedValues, 3, 0.01, 0.8), (LinearValues, 4, 0.003, 0.6)]
)
def test_after_training_the_loss_is_lower(kind, level, lr, share):
    model, optimizer, pruner = pruned("adam", 0.3, steps=300)
    quantised = kind(pruner, level)
    optimizer.param_groups[0]["lr"] = lr
    before = unseen_loss(model)
    train(model, optimizer, 200, first=300)
    assert unseen_loss(model) < share * before
    CHECKS[kind](quantised, level)


@each_kind(4, 4)
def test_what_is_pruned_later_is_zero_and_has_no_value(kind, level):
    model, optimizer, pruner = pruned("adam", 0.3)
    quantised = kind(pruner, level)
    before = quantised.codes()
    for sparsity in (0.5, 0.8, 0.9):
        one_step(model, optimizer, int(100 * sparsity))
        pruner.prune(sparsity)
        CHECKS[kind](quantised, level)
        one_step(model, optimizer, 0)
        CHECKS[kind](quantised, level)
    assert pruner.sparsity == pytest.approx(0.9, abs=0.01)
    for name, codes in quantised.codes().items() if kind is SharedValues else ():
        assert torch.equal(codes, torch.where(pruner.masks[name], before[name], -1)), "a weight changed its cluster"


@each_kind(4, 2)
def test_a_schedule_prunes_on(kind, level):
    model, optimizer, pruner = pruned("adam", 0.3, schedule=pw.Cubic(0.8, begin=0, end=20, every=5, initial=0.3))
    quantised = kind(pruner, level)
    for step in range(25):
        one_step(model, optimizer, step)
        CHECKS[kind](quantised, level)
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)
