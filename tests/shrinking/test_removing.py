"""Units that are pruned whole are gone, and the outputs are those of the masked model."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.newer import ResNet8, Transformer
from tests.shrinking.helpers import assert_same, count, outputs, zero_units

IMAGES = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(4, 6)


def cnn():
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6)]
    model = nn.Sequential(*convolutions, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(150, 3))
    for _ in range(3):
        model(IMAGES)
    return model, IMAGES


@pytest.mark.parametrize("make", [mlp, cnn], ids=["MLP", "CNN"])
def test_what_is_masked_is_gone_and_nothing_else_changes(make):
    model, x = make()
    zero_units(model, x)
    wanted, before = outputs(model, x), {name: p.clone() for name, p in model.state_dict().items()}
    small, none = pw.shrink(model, x)
    assert none is None
    assert count(small) < 0.6 * count(model)
    assert_same(wanted, outputs(small, x))
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert model.training
    assert small.training


def test_layers_say_how_wide_they_are():
    model, x = cnn()
    small, _ = pw.shrink(zero_units(model, x), x)
    assert (small[0].out_channels, small[1].num_features, small[3].in_channels, small[8].in_features) == (4, 4, 4, 75)


@pytest.mark.parametrize(("kind", "share"), [(ResNet8, 0.3), (Transformer, 0.55)])
def test_networks_of_the_lab(kind, share):
    torch.manual_seed(0)
    model = zero_units(kind(1, 12, 10), IMAGES)
    small, _ = pw.shrink(model, IMAGES)
    assert count(small) < share * count(model)
    assert_same(outputs(model, IMAGES), outputs(small, IMAGES))


def test_training_goes_on():
    model, x = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(x).square().sum().backward()
    optimizer.step()
    zero_units(model, x)
    small, carried = pw.shrink(model, x, optimizer)
    assert type(carried) is torch.optim.Adam
    kept = optimizer.state[model[0].weight]["exp_avg"][4:]
    assert torch.equal(carried.state[small[0].weight]["exp_avg"], kept)
    before = small[0].weight.clone()
    carried.zero_grad()
    small(x).square().sum().backward()
    carried.step()
    assert not torch.equal(before, small[0].weight)
    assert optimizer.state[model[0].weight]["exp_avg"].shape == (8, 6)


def test_channels_that_lie_last_in_memory_stay_there():
    model, x = cnn()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    pruner = pw.Pruner(model, optimizer, pattern=pw.Filter())
    pruner.prune(0.5, example_inputs=x, of="filters")
    small, optimizer = pw.shrink(pruner, x, optimizer)
    weight = small[3].weight
    for tensor in (weight, optimizer.state[weight]["exp_avg"]):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()
