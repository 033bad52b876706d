"""A model that was pruned elsewhere, or by another program, is held and pruned on; a schedule tells what it did."""

import logging

import pytest
import torch

import prunewald as pw
from tests.training import net, train

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(model=None):
    model = net() if model is None else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    return model, optimizer


def test_zeros_that_are_there_are_held():
    model, optimizer = trained()
    with torch.no_grad():
        model[0].weight[:, :3] = 0
    pruner = pw.Pruner(model, optimizer)
    pruner.hold_zeros()
    assert pruner.sparsity == pytest.approx(24 / 80)
    train(model, optimizer, 3)
    assert (model[0].weight[:, :3] == 0).all()
    assert (model[0].weight[:, 3:] != 0).all()


def test_zeros_off_target_stay_free():
    model, optimizer = trained()
    with torch.no_grad():
        model[0].weight.zero_()
    pruner = pw.Pruner(model, optimizer, targets="0.weight[0:2]")
    pruner.hold_zeros()
    train(model, optimizer, 2)
    assert (model[0].weight[:2] == 0).all()
    assert (model[0].weight[2:] != 0).any()


def test_another_program_prunes_further_from_a_file(tmp_path):
    model, optimizer = trained()
    first = pw.Pruner(model, optimizer)
    first.prune(0.5)
    pw.save(first, tmp_path / "model.pw")
    fresh = net(1)
    fresh_optimizer = torch.optim.Adam(fresh.parameters(), lr=0.01)
    pruner = pw.Pruner.from_file(tmp_path / "model.pw", fresh, fresh_optimizer)
    assert pruner.sparsity == pytest.approx(first.sparsity)
    train(fresh, fresh_optimizer, 3)
    assert all(torch.equal(pruner.masks[name], mask) for name, mask in first.masks.items())
    pruner.prune(0.8)
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)
    assert all((pruner.masks[name] <= mask).all() for name, mask in first.masks.items())


def test_a_schedule_tells_what_it_did(caplog):
    model, optimizer = trained()
    pruner = pw.Pruner(model, optimizer, schedule=pw.Stairs((0.3, 0.6), begin=2, every=2))
    with caplog.at_level(logging.INFO, "prunewald"):
        train(model, optimizer, 5)
    assert [(step, asked) for step, asked, _ in pruner.history] == [(2, 0.3), (4, 0.6)]
    assert all(reached == pytest.approx(asked, abs=0.02) for _, asked, reached in pruner.history)
    assert [record.getMessage()[:6] for record in caplog.records] == ["step 2", "step 4"]
    again = pw.Pruner(net(), torch.optim.Adam(net().parameters()), criterion="magnitude", schedule=pruner.schedule)
    state = pruner.state_dict() | {"states": []}
    again.load_state_dict(state)
    assert again.history == pruner.history
