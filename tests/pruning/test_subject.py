"""One pruning of a model: masks chosen without a trace, then held, with what would move a pruned weight cleared."""

import copy

import pytest
import torch

import prunewald as pw
from prunewald.pruning.plan import Request
from tests.pruning.helpers import Recording
from tests.resuming import same
from tests.training import closure_step, net, sgd, train, trained_pruner, wide

pytestmark = pytest.mark.usefixtures("one_thread")


def pruner_on(optimizer=sgd, steps=3, **choice):
    model = net()
    pruner = pw.Pruner(model, optimizer(model), **{"criterion": "magnitude", "scope": "layer", **choice})
    train(model, pruner.optimizers[0], steps)
    return pruner


def test_to_choose_changes_nothing():
    pruner = pruner_on()
    parts = pruner.model, pruner.optimizers[0], pruner
    before = copy.deepcopy([part.state_dict() for part in parts])
    masks, report = pruner._subject.choose(pruner._plan(Request(0.5)))
    assert same([part.state_dict() for part in parts], before)
    assert report.sparsity == 0.5
    assert all(int(mask.sum()) == mask.numel() / 2 for mask in masks.values())


def test_slices_are_put_back_into_their_parameter():
    pruner = pruner_on(targets=["0.weight[0]", "0.weight[2:4]"])
    masks, _ = pruner.choose(0.5)
    assert masks.keys() == {"0.weight"}
    assert (~masks["0.weight"]).sum(1).tolist() == [3, 0, *(~masks["0.weight"]).sum(1)[2:4].tolist(), 0, 0, 0, 0]
    assert int((~masks["0.weight"]).sum()) == 3 + 6


def test_held_weights_are_zero_and_their_momentum_too():
    pruner = pruner_on()
    masks, _ = pruner.choose(0.5)
    pruner._subject.hold(masks)
    for name, mask in masks.items():
        param = pruner.model.get_parameter(name)
        momentum = pruner.optimizers[0].state[param]["momentum_buffer"]
        assert not param[~mask].any()
        assert not param.grad[~mask].any()
        assert not momentum[~mask].any()
        assert momentum[mask].all()


def test_the_history_of_lbfgs_is_dropped_when_zeros_are_held():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    closure_step(model, optimizer, 0)
    assert optimizer.state[model[0].weight]
    pruner._subject.hold(pruner.choose(0.5)[0])
    assert not optimizer.state[model[0].weight]


def test_estimates_are_of_any_estimator():
    pruner = trained_pruner()
    found = pruner._subject.estimates(pw.SecondMoment(samples=100, batch_size=16))
    v = pruner.optimizers[0].state[pruner.model[0].weight]["exp_avg_sq"] / (1 - 0.999**30)
    torch.testing.assert_close(found["0.weight"].sigma, (1600 * v).rsqrt())


def test_holdings_show_what_the_optimizer_moves_while_it_is_looked_at():
    pruner, holding = pruner_on(uncertainty="second-moment"), Recording()
    pruner.hold(holding)
    for look in (pruner.sigma, pruner.dead, pruner.scores, lambda: pruner.choose(0.5)):
        look()
        assert holding.taken() == ["seen", "unseen"]


def test_an_optimizer_that_steps_no_target_is_noted():
    pruner = pw.Pruner(wide(), sgd(wide()), criterion="magnitude")
    assert any("steps none of the targets" in note for note in pruner.prune(0.5).notes)


def test_nothing_is_done_after_detach():
    pruner = pruner_on()
    masks, _ = pruner.choose(0.5)
    pruner.detach()
    for act in (lambda: pruner.choose(0.5), pruner.sigma, pruner.scores, lambda: pruner._subject.hold(masks)):
        with pytest.raises(ValueError, match="detached: make a new one"):
            act()
    assert pruner.sparsity == 0
