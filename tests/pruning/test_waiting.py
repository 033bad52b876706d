"""An optimizer that was replaced, or steps elsewhere, or a step that never comes: said once, and zeros hold."""

import copy
import gc
import warnings
import weakref

import pytest
import torch

import prunewald as pw
from tests.training import batch, closure_step, loss_of, net, one_step, sgd, train, zeros_hold

pytestmark = pytest.mark.usefixtures("one_thread")


def adam(model, **options):
    return torch.optim.Adam(model.parameters(), lr=0.01, **options)


def said_of(run):
    """The warnings of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_replaced_in_the_middle_of_a_schedule_is_said_once_and_zeros_hold(fused):
    model = net()
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.8, begin=3, end=60, every=3))
    train(model, optimizer, 20)
    assert 0 < pruner.sparsity < 0.8
    found = said_of(lambda: train(model, adam(model, fused=fused), 200))
    assert len(found) == 1
    assert "no step of the Adam" in found[0]
    assert "schedule does not go on" in found[0]
    assert "Pruner(model, optimizer)" in found[0]
    assert zeros_hold(model, pruner)
    model.eval()(batch(0)[0])


def test_an_optimizer_replaced_after_a_pruning_is_said_once_and_zeros_hold():
    model = net()
    optimizer = adam(model)
    train(model, optimizer, 3)
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(0.8)
    (found,) = said_of(lambda: train(model, sgd(model), 100))
    assert "another are not watched" in found
    model.eval()(batch(0)[0])
    assert zeros_hold(model, pruner)


def test_a_schedule_without_an_optimizer_that_never_hears_of_a_step():
    model = net()
    pruner = pw.Pruner(model, schedule=pw.Cubic(0.8, begin=3, end=60))
    (found,) = said_of(lambda: train(model, adam(model), 100))
    assert "apply_()" in found
    assert "Pruner(model, optimizer)" in found
    assert pruner.steps == 0


def test_a_schedule_whose_optimizer_never_steps_though_no_weight_moves():
    model = net()
    pw.Pruner(model, adam(model), schedule=pw.Cubic(0.8, begin=3, end=60))

    def passes():
        for step in range(1100):
            model.zero_grad()
            loss_of(model, step % 3).backward()

    (found,) = said_of(passes)
    assert "no step of the Adam" in found
    assert "weights change" not in found


@pytest.mark.parametrize("gathered", [1, 5, 80])
def test_nothing_is_said_where_steps_come(gathered):
    model = net()
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.8, begin=2, end=4))
    for step in range(6):
        optimizer.zero_grad()
        for part in range(gathered):
            loss_of(model, part).backward()
        optimizer.step()
        with torch.no_grad():
            for _ in range(100):
                model(batch(step)[0])
    assert pruner.sparsity == pytest.approx(0.8, abs=0.02)


def test_nothing_is_said_within_a_step_of_lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=100, tolerance_grad=0, tolerance_change=0)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", schedule=pw.Cubic(0.8, begin=1, end=2, every=1))
    for step in range(3):
        closure_step(model, optimizer, step)
    assert pruner.sparsity == pytest.approx(0.8, abs=0.02)


def test_nothing_is_said_where_apply_is_called():
    model = net()
    optimizer = adam(model)
    pruner = pw.Pruner(model, criterion="magnitude", schedule=pw.Cubic(0.8, begin=3, end=60))
    for step in range(70):
        one_step(model, optimizer, step)
        pruner.apply_()
    assert pruner.sparsity == pytest.approx(0.8, abs=0.02)


def test_an_optimizer_elsewhere_whose_momentum_brings_weights_back_is_named_once():
    """Pruner(model) though an optimizer steps: what its momentum of before the pruning moves is set to zero again."""
    model = net()
    optimizer = adam(model)
    train(model, optimizer, 3)
    pruner = pw.Pruner(model)
    pruner.prune(0.8)
    found = said_of(lambda: train(model, optimizer, 30))
    assert len(found) == 1
    assert "Pruner(model, optimizer)" in found[0]
    assert "'0.weight'" in found[0]
    model.eval()(batch(0)[0])
    assert zeros_hold(model, pruner)
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)


def test_a_replaced_optimizer_is_not_kept_alive():
    model = net()
    optimizer = adam(model)
    train(model, optimizer, 2)
    pw.Pruner(model, optimizer).prune(0.8)
    kept = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert kept() is None
    model[0].weight.data.fill_(1.0)
    with pytest.warns(UserWarning, match="Adam.*set to zero"):
        model.eval()(batch(0)[0])


def test_a_model_that_waits_is_copied_and_let_go():
    model = net()
    optimizer = adam(model)
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.8, begin=3, end=60))
    twin = copy.deepcopy(model)
    train(twin, adam(twin), 50)
    pruner.detach()
    assert said_of(lambda: train(model, adam(model), 50)) == []
