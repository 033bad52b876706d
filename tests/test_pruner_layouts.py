"""Patterns, rows and experts go by the layout of a layer, and what is emptied is said."""

import copy

import pytest
import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.model.layouts import Layout
from prunewald.strategies.surgery import Surgery


class Conv1D(nn.Module):
    """GPT-2's linear layer: y = x @ weight + bias, so the weight is (in, out)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def transposed(groups: int = 1) -> nn.Module:
    return nn.ConvTranspose2d(8, 4 * groups, 3, groups=groups, bias=False)


def pruned(layer: nn.Module, sparsity: float | None = None, **choices) -> Tensor:
    """The mask of a layer's weight, by magnitude."""
    pruner = pw.Pruner(layer, criterion="magnitude", **choices)
    pruner.prune(sparsity)
    return pruner.masks["weight"]


def outputs(layer: nn.Module) -> Tensor:
    """By output channel, whether any input reaches it."""
    with torch.no_grad():
        x = torch.randn(64, 8, 5, 5) if isinstance(layer, nn.ConvTranspose2d) else torch.randn(64, 8)
        return (layer(x) != 0).movedim(1, 0).flatten(1).any(1)


# ---- filters and rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [transposed(), transposed(2), transposed(4), Conv1D(8, 8)], ids=str)
def test_a_filter_is_an_output_of_the_layer(layer):
    pruned(layer, 0.5, pattern=pw.Filter(score="l1"))
    alive = outputs(layer)
    assert int(alive.sum()) == len(alive) // 2


@pytest.mark.parametrize("layer", [transposed(), transposed(2), Conv1D(8, 8)], ids=str)
def test_the_inputs_are_dimension_one(layer):
    mask = pruned(layer, 0.5, pattern=pw.Filter(dim=1, score="l1"))
    by_input = mask.flatten(1)
    if isinstance(layer, Conv1D) or layer.groups == 1:
        assert sorted(by_input.float().mean(1).tolist()) == [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize("layer", [transposed(), transposed(2), Conv1D(6, 8)], ids=str)
def test_a_row_is_one_output(layer):
    mask = pruned(layer, 0.5, scope="row")
    layout = Layout(transposed=True, groups=layer.groups if isinstance(layer, nn.ConvTranspose2d) else 1)
    by_output = layout.swap(mask).flatten(1)
    assert set(by_output.sum(1).tolist()) == {by_output.shape[1] // 2}
    assert set(mask.flatten(1).sum(1).tolist()) != {mask[0].numel() // 2}


@pytest.mark.parametrize("by_layer", [0.5, {"weight": 0.5}])
def test_a_linear_layer_and_its_transpose_lose_the_same_weights(by_layer):
    linear, other = nn.Linear(8, 12, bias=False), Conv1D(12, 8)
    with torch.no_grad():
        other.weight.copy_(linear.weight.T)
    groups = [{"pattern": pattern} for pattern in (pw.Filter(), pw.Filter(dim=1), pw.Block(2, 4), pw.KeepNOfM())]
    for choices in ({"scope": "row"}, *groups):
        mask, turned = (pruned(copy.deepcopy(layer), by_layer, **choices) for layer in (linear, other))
        assert torch.equal(mask, turned.T), choices


def test_two_of_four_along_the_inputs():
    mask = pruned(Conv1D(6, 8), pattern=pw.KeepNOfM())
    assert (mask.T.reshape(6, 2, 4).sum(2) == 2).all()
    mask = pruned(transposed(2), pattern=pw.KeepNOfM())
    assert (mask.reshape(2, 4, 4, 3, 3).sum(1) == 2).all()


def test_what_does_not_fit_the_layer_is_refused_at_once():
    with pytest.raises(ValueError, match=r"'weight'.*multiple of 4, and it is 6"):
        pw.Pruner(Conv1D(8, 6), pattern=pw.KeepNOfM())
    pw.Pruner(Conv1D(6, 8), pattern=pw.KeepNOfM())


def test_a_slice_along_the_axes_keeps_the_layout():
    layer = Conv1D(6, 8)
    pw.Pruner(layer, criterion="magnitude", scope="row", targets="weight[:, :3]").prune(0.5)
    assert ((layer.weight[:, :3] == 0).sum(0) == 4).all()
    assert layer.weight[:, 3:].all()


def test_pruning_further_by_rows():
    layer = Conv1D(6, 8)
    pruner = pw.Pruner(layer, criterion="magnitude", scope="row")
    pruner.prune(0.25)
    pruner.prune(0.5)
    assert (pruner.masks["weight"].sum(0) == 4).all()
    assert pruner.report.rows[0].shape == (8, 6)


def test_surgery_by_rows():
    layer = Conv1D(6, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    surgery = Surgery(layer, optimizer, sparsity=0.5, scope="row", criterion="magnitude", margin=0.0, every=1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(16, 8)).square().sum().backward()
        optimizer.step()
    assert (surgery.masks["weight"].sum(0) == 4).all()
