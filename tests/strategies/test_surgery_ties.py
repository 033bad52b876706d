"""Weights that score alike, as dead ones do, are pruned by count; and what surgery cannot be done with."""

import pytest
import torch
from torch import nn

import prunewald as pw


def steps(model, optimizers, count, alive=1):
    for _ in range(count):
        x = torch.randn(8, 10)
        x[:, alive:] = 0
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(x).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("scope", ["layer", "global", "row"])
@pytest.mark.parametrize("criterion", ["taylor", "snip", "movement", "wald", "magnitude-uncertainty"])
def test_dead_inputs_leave_the_count_as_it_is_to_be(criterion, scope):
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    surgery = pw.Surgery(model, optimizer, sparsity=0.8, criterion=criterion, scope=scope, gamma=0.0)
    steps(model, [optimizer], 5)
    assert surgery.sparsity == pytest.approx(0.8, abs=0.05)


def test_zeros_that_are_there_already_are_pruned():
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    model.weight.data[:, 1:] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    surgery = pw.Surgery(model, optimizer, sparsity=0.8, criterion="magnitude", gamma=0.0)
    steps(model, [optimizer], 3)
    assert surgery.sparsity == pytest.approx(0.8)


@pytest.mark.parametrize("criterion", ["movement", "platon", "obd"])
def test_a_layer_whose_optimizer_has_not_stepped_yet_is_waited_for(criterion):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 2))
    first, last = (torch.optim.SGD(part.parameters(), lr=0.01) for part in model)
    surgery = pw.Surgery(model, [first, last], sparsity=0.5, criterion=criterion, gamma=0.0)
    model(torch.randn(8, 10)).square().sum().backward()
    with pytest.warns(UserWarning, match="waits, at step 1"):
        last.step()
    steps(model, [first, last], 4, alive=10)
    assert surgery.sparsity == pytest.approx(0.5, abs=0.1)


def test_lbfgs_is_refused():
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="LBFGS"):
        pw.Surgery(model, torch.optim.LBFGS(model.parameters()), sparsity=0.5)
