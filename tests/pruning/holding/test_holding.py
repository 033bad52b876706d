"""A way of holding of one's own acts around every step, after the zeros, until it is let go."""

import pytest
import torch

import prunewald as pw
from prunewald.pruning.holding.holding import Holding
from tests.pruning.helpers import Recording
from tests.training import closure_step, net, one_step, sgd, train, zeros_hold

pytestmark = pytest.mark.usefixtures("one_thread")


class Halves(Holding):
    """The model computes with weights in multiples of a half; out of sight they move freely."""

    def __init__(self, model) -> None:
        self.params = dict(model.named_parameters())
        self.full: dict[str, torch.Tensor] = {}

    def ready_(self, names):
        for name in names:
            if name in self.full:
                self.params[name].copy_(self.full.pop(name))

    def settle_(self, names):
        for name in names:
            if name not in self.full:
                self.full[name] = self.params[name].detach().clone()
                self.params[name].copy_((2 * self.full[name]).round() / 2)


def in_halves(pruner):
    return all(torch.equal(2 * weight, (2 * weight).round()) for weight in pruner.targets().values())


def attached(**choice):
    model = net()
    optimizer = sgd(model)
    return model, optimizer, pw.Pruner(model, optimizer, criterion="magnitude", **choice)


def test_it_acts_around_steps_and_closures_in_the_order_of_adding():
    model, optimizer, pruner = attached()
    events = []
    first, second = Recording("first", events), Recording("second", events)
    pruner.hold(first)
    pruner.hold(second)
    assert pruner.holdings == (first, second)
    own = "0.weight 2.weight"
    one_step(model, optimizer, 0)
    around = [f"first ready {own}", f"second ready {own}", f"first settle {own}", f"second settle {own}"]
    assert first.taken() == around
    closure_step(model, optimizer, 1)
    assert first.taken() == around[2:] + around
    pruner.apply_()
    assert first.taken() == around[2:]


def test_let_go_ends_it_and_the_others_act_on():
    model, optimizer, pruner = attached()
    holding, other = Recording(), Recording()
    pruner.hold(holding)
    pruner.hold(other)
    pruner.let_go(holding)
    assert holding.taken() == ["end"]
    one_step(model, optimizer, 0)
    assert holding.taken() == []
    assert len(other.taken()) == 2
    assert pruner.holdings == (other,)


def test_detach_settles_and_ends_it():
    model, optimizer, pruner = attached()
    holding = Recording()
    pruner.hold(holding)
    pruner.detach()
    assert holding.taken() == ["settle 0.weight 2.weight", "end"]
    one_step(model, optimizer, 0)
    assert holding.taken() == []
    assert not optimizer._optimizer_step_pre_hooks


def test_the_model_computes_with_what_it_settles_and_the_optimizer_moves_the_rest():
    model, optimizer, pruner = attached(schedule=pw.Stairs((0.25, 0.5), begin=3, every=3))
    holding = Halves(model)
    pruner.hold(holding)
    for step in range(8):
        (closure_step if step % 2 else one_step)(model, optimizer, step)
        assert in_halves(pruner)
        assert zeros_hold(model, pruner)
    assert pruner.sparsity == 0.5
    full = holding.full["0.weight"]
    assert len(full.unique()) > 20
    assert not full[~pruner.masks["0.weight"]].any(), "it settles after the zeros"
    pruner.let_go(holding)
    train(model, optimizer, 2, first=8)
    assert not in_halves(pruner)
    assert zeros_hold(model, pruner)


def test_by_default_it_does_not_compete_and_hides_nothing():
    holding = Halves(net())
    assert not holding.competes
    with holding.in_sight() as nothing:
        assert nothing is None
    holding.end_()


@pytest.mark.parametrize("missing", ["ready_", "settle_"])
def test_both_sides_of_a_step_have_to_be_there(missing):
    methods = {name: lambda self, names: None for name in ("ready_", "settle_") if name != missing}
    with pytest.raises(TypeError, match=missing):
        type("Half", (Holding,), methods)()
