import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.uncertainty import BatchMeans


def test_a_state_of_other_batches_is_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = pw.Pruner(model, optimizer, uncertainty=BatchMeans(length=5)).state_dict()
    other = pw.Pruner(model, optimizer, uncertainty=BatchMeans(length=7))
    other.load_state_dict(state)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match=r"batches of 5 steps.*BatchMeans\(.*length=7"):
        optimizer.step()


@pytest.mark.parametrize("settings", [{"samples": 10}, {"samples": 0, "batch_size": 1}, {"length": 1}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        BatchMeans(**settings)


def test_one_batch_is_too_few():
    model = nn.Linear(2, 2)
    pruner = pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1), uncertainty=BatchMeans(length=5))
    with pytest.raises(ValueError, match=r"BatchMeans\(.*length=5\) has 0 batch.*train on"):
        pruner.sigma()
