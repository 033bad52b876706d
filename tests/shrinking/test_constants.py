"""What a unit that goes would still give is added to a bias, or the unit stays and it is said."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from tests.shrinking.helpers import assert_same, count, outputs, zero_units
from tests.shrinking.models import IMAGES, settled

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("function", [nn.Sigmoid(), nn.Softplus(), nn.Tanh()])
@pytest.mark.parametrize("beside", [True, False])
def test_a_constant_is_added_to_the_next_bias(function, beside):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), function, nn.Linear(8, 8), function, nn.Linear(8, 2))
    small, _ = pw.shrink(zero_units(model, X, beside=beside), X)
    assert (small[2].in_features, small[2].out_features) == (4, 4)
    other = torch.randn(5, 4)
    assert_same(outputs(model, other), outputs(small, other))


def test_without_a_bias_it_stays():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2, bias=False))
    with pytest.raises(ValueError, match="0: 4 units that are pruned still give '2.weight' a constant"):
        pw.shrink(zero_units(model, X), X)


class Shifted(nn.Module):
    x = IMAGES

    def __init__(self, padding, bias):
        super().__init__()
        self.a, self.n = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.n2 = nn.Conv2d(8, 8, 3, padding=padding, bias=bias), nn.BatchNorm2d(8)
        self.h = nn.Linear(8, 3)

    def forward(self, x):
        return self.h(F.leaky_relu(self.n2(self.b(F.leaky_relu(self.n(self.a(x)))))).mean((2, 3)))


def test_the_shift_of_a_norm():
    torch.manual_seed(0)
    model = zero_units(settled(Shifted(0, True)), IMAGES, beside=False)
    small, _ = pw.shrink(model, IMAGES)
    assert small.b.in_channels == 4
    assert_same(outputs(model, IMAGES), outputs(small, IMAGES))


@pytest.mark.parametrize(("padding", "bias"), [(1, True), (0, False)])
def test_where_it_cannot_be_added_exactly_the_units_stay(padding, bias):
    torch.manual_seed(0)
    model = zero_units(settled(Shifted(padding, bias)), IMAGES, beside=False)
    reason = "a: 4 units that are pruned still give 'b.weight' a constant.*hold_zeros.. keeps them so"
    with pytest.warns(UserWarning, match=reason):
        small, _ = pw.shrink(model, IMAGES)
    assert (small.b.in_channels, small.h.in_features) == (8, 4)
    assert_same(outputs(model, IMAGES), outputs(small, IMAGES))


def test_what_nothing_reads_goes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2, bias=False))
    with torch.no_grad():
        model[2].weight[:, :3] = 0
    small, _ = pw.shrink(model, X)
    assert small[0].out_features == 5
    assert_same(outputs(model, X), outputs(small, X))


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = self.a(x)
        return self.c(h + self.b(h.relu()))


def test_of_a_sum_all_that_is_added_has_to_be_pruned():
    torch.manual_seed(0)
    model = Added()
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.weight[:3], layer.bias[:3] = 0, 0
        model.b.weight[3:5], model.b.bias[3:5] = 0, 0
    with pytest.warns(UserWarning, match="a: 2 units are made by a.weight too, which keeps them"):
        small, _ = pw.shrink(model, X)
    assert small.a.out_features == small.b.out_features == small.c.in_features == 5
    assert_same(outputs(model, X), outputs(small, X))


def test_a_width_under_a_norm_stays():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight[:3], model[0].bias[:3] = 0, 0
    reason = re.escape("0: of what is pruned 3 units stay, since a norm takes its mean or square over it in '1'")
    with pytest.raises(ValueError, match=reason):
        pw.shrink(model, X)


def test_a_pruner_has_its_masks_alone_removed():
    """A layer that begins at zero, as some residual branches do, is not pruned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.zeros_(model[2].weight)
    pruner = pw.Pruner(model, pattern=pw.Filter(), criterion="magnitude", targets="0.weight")
    pruner.prune(0.5)
    small, _ = pw.shrink(pruner, X)
    assert (small[0].out_features, small[2].out_features) == (4, 8)


def test_the_last_unit_of_a_layer_stays():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match="all of it is pruned, so one unit stays"):
        small, _ = pw.shrink(zero_units(model, X, 1.0), X)
    assert small[0].out_features == 1
    assert count(small) < count(model)
