"""Patterns, rows and experts go by the layout of a layer, and what is emptied is said."""

import copy
import warnings

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
        reached: Tensor = (layer(x) != 0).movedim(1, 0).flatten(1).any(1)
    return reached


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


# ---- experts -------------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """As in Mixtral: one matrix (out, in) for each of four experts, in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 16, 8))
        self.down_proj = nn.Parameter(torch.randn(4, 8, 8))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(4, 16))


class GptOssExperts(Experts):
    """As in GPT-OSS, whose matrices are (in, out)."""


class TopKRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))


class Mixture(nn.Module):
    def __init__(self, experts: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.gate, self.experts = gate, experts
        self.shared_expert_gate = nn.Linear(8, 1)


MIXED = [f"experts.{name}[{at}]" for name in ("gate_up_proj", "down_proj") for at in range(4)]


@pytest.mark.parametrize("gate", [TopKRouter(), nn.Linear(8, 4, bias=False)], ids=["router", "linear"])
def test_every_expert_is_a_slice_and_routers_are_left_out(gate):
    model = Mixture(Experts(), gate)
    pruner = pw.Pruner(model, criterion="magnitude", scope="layer")
    assert [part.name for part in pruner.slices] == MIXED
    report = pruner.prune(0.75)
    assert {row.sparsity for row in report.rows} == {0.75}
    (note,) = [note for note in report.notes if "left out" in note]
    assert "gate.weight, experts.gate_up_proj_bias, shared_expert_gate.weight" in note
    assert ((model.experts.down_proj == 0).flatten(1).sum(1) == 48).all()
    assert model.gate.weight.all()


def test_a_gate_without_experts_is_a_layer():
    model = nn.ModuleDict({"gate": nn.Linear(4, 4), "gate_proj": nn.Linear(4, 4)})
    assert list(pw.Pruner(model, criterion="magnitude").masks) == ["gate.weight", "gate_proj.weight"]


def test_targets_and_dicts_name_experts():
    model = Mixture(Experts(), TopKRouter())
    pruner = pw.Pruner(model, criterion="magnitude", targets="experts", ignore=["*_bias", "experts.down_proj[1]"])
    assert [part.name for part in pruner.slices] == [name for name in MIXED if name != "experts.down_proj[1]"]
    pruner.prune({"experts.gate_up_proj": 0.5, "experts.down_proj[2]": 0.25})
    assert pruner.masks["experts.gate_up_proj"].flatten(1).sum(1).tolist() == [64] * 4
    assert pruner.masks["experts.down_proj"].flatten(1).sum(1).tolist() == [64, 64, 48, 64]
    assert [part.name for part in pw.Pruner(Experts(), targets="down_proj[3]").slices] == ["down_proj[3]"]


@pytest.mark.parametrize(("experts", "inputs"), [(Experts(), 2), (GptOssExperts(), 1)], ids=["(out, in)", "(in, out)"])
def test_two_of_four_and_rows_go_along_the_inputs_of_each_expert(experts, inputs):
    by_row = pw.Pruner(copy.deepcopy(experts), criterion="magnitude", scope="row")
    by_row.prune(0.5)
    pruner = pw.Pruner(experts, criterion="magnitude", pattern=pw.KeepNOfM())
    pruner.prune()
    for name in ("gate_up_proj", "down_proj"):
        rows = by_row.masks[name].movedim(inputs, 2)
        assert (rows.sum(2) == rows.shape[2] // 2).all()
        groups = pruner.masks[name].movedim(inputs, 2).unflatten(2, (-1, 4))
        assert (groups.sum(3) == 2).all()


def test_sigma_of_a_stack_is_computed_once():
    calls = []

    class Counted(pw.SecondMoment):
        def sigma(self, state, weight, optimizer):
            calls.append(weight.name)
            return super().sigma(state, weight, optimizer)

    model = Experts()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        sum((param * torch.randn_like(param)).sum() for param in model.parameters()).backward()
        optimizer.step()
    pw.Pruner(model, optimizer, uncertainty=Counted()).prune(0.5)
    assert calls == ["gate_up_proj", "down_proj"]


# ---- emptied -------------------------------------------------------------------------------------------------------


def starved() -> nn.Module:
    model = Mixture(Experts(), TopKRouter())
    with torch.no_grad():
        model.get_parameter("experts.down_proj")[2].mul_(1e-6)
    return model


def test_an_emptied_expert_is_a_warning_that_comes_once():
    pruner = pw.Pruner(starved(), criterion="magnitude", scope="global")
    pruner.prune(0.5, dry_run=True)
    with pytest.warns(UserWarning, match=r"experts.down_proj\[2\] lost all.*scope='layer'"):
        assert pruner.prune(0.5).emptied == ["experts.down_proj[2]"]
    pruner.prune(0.6)


def test_an_emptied_layer_is_a_warning_by_schedule_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    levels = {1: 0.2, 2: 0.5, 3: 0.6}
    pw.Pruner(model, optimizer, criterion="magnitude", scope="global", schedule=levels.get)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()

    step()
    with pytest.warns(UserWarning, match="0.weight lost all"):
        step()
    step()


def test_the_first_layer_emptied_by_a_global_cubic_is_a_warning():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    sigma = {name: torch.full_like(p, 9.0 if name == "0.weight" else 0.1) for name, p in model.named_parameters()}
    schedule = pw.Cubic(0.97, begin=2, end=12, every=2)
    choices = {"criterion": "magnitude-uncertainty", "uncertainty": sigma, "scope": "global"}
    pruner = pw.Pruner(model, optimizer, schedule=schedule, **choices)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(16, 20)).square().mean().backward()
            optimizer.step()
    said = [str(one.message) for one in caught]
    assert sum("0.weight lost all" in text and "scope='layer'" in text for text in said) == 1
    assert not pruner.masks["0.weight"].any()
    assert pruner.report is not None
    assert "0.weight" in pruner.report.emptied
