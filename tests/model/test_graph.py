"""Coupled groups, found in one forward pass: whose rows, columns and entries go together."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.lab.newer import ResNet8, Transformer
from prunewald.model.graph import find_groups

IMAGES = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def told(model, x):
    """By group: how many units, and of each member how wide a unit is, and its role."""
    return {
        group.name: (group.units, {f"{m.name}@{m.axis}": (m.at.shape[1], m.role) for m in group.members})
        for group in find_groups(model, x)
    }


def test_a_chain_with_a_norm_and_a_flattened_map():
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 5)]
    groups = find_groups(nn.Sequential(*layers, nn.GELU(), nn.Linear(5, 3)), IMAGES)
    first, second = groups
    assert [(m.name, m.axis, m.role) for m in first.members] == [
        ("0.weight", 0, "makes"), ("0.bias", 0, "beside"), ("1.weight", 0, "beside"), ("1.bias", 0, "beside"),
        ("5.weight", 1, "reads"), ("1.running_mean", 0, "beside"), ("1.running_var", 0, "beside"),
    ]  # fmt: skip
    assert first.members[4].at.tolist() == torch.arange(100).view(4, 25).tolist()
    assert [(m.name, m.axis, m.role) for m in second.members] == [
        ("5.weight", 0, "makes"), ("5.bias", 0, "beside"), ("7.weight", 1, "reads"),
    ]  # fmt: skip


def test_what_is_added_goes_together():
    groups = told(ResNet8(1, 12, 10), IMAGES)
    units, members = groups["conv"]
    assert units == 16
    assert [name for name, (_, role) in members.items() if role == "makes"] == [
        "conv.weight@0", "blocks.0.conv2.weight@0",
    ]  # fmt: skip
    assert "fc" not in groups  # its outputs are those of the model


def test_heads_are_units_and_a_width_under_a_norm_is_none():
    groups = told(Transformer(1, 12, 10), IMAGES)
    assert set(groups) == {f"blocks.{i}.{name}" for i in (0, 1) for name in ("query", "fc1")}
    units, members = groups["blocks.0.query"]
    assert units == 4
    assert members["blocks.0.value.weight@0"] == (16, "makes")
    assert members["blocks.0.out.weight@1"] == (16, "reads")


def test_packed_queries_keys_and_values():
    units, members = told(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16))["self_attn"]
    assert units == 4
    assert members["self_attn.in_proj_weight@0"] == (12, "makes")


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x):
        h = self.fc(x)
        return h if h.sum() > 0 else -h


def test_what_is_computed_may_not_decide():
    with pytest.raises(ValueError, match="decides what it does next"):
        find_groups(Branching(), torch.randn(2, 3))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.fft.fft(self.a(x)).real)


def test_an_operation_that_is_not_known_keeps_all_that_comes_to_it():
    assert find_groups(Odd(), torch.randn(2, 3)) == []


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 16), nn.Linear(8, 6)

    def forward(self, x):
        a, b = self.up(x).chunk(2, -1)
        return self.down(F.silu(a) * b)


def test_two_halves_that_are_multiplied():
    ((group),) = find_groups(Gated(), torch.randn(2, 6))
    assert group.members[0].at.tolist() == [[i, i + 8] for i in range(8)]
