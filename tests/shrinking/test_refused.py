"""What cannot be shrunk is refused with the place and the remedy; models as users hand them over behave."""

import copy

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.shrinking.helpers import assert_same, outputs, zero_units

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def single():
    pruner = pw.Pruner(mlp(), criterion="magnitude")
    pruner.prune(0.5)
    return pruner


REFUSED = {
    "single weights": (single, X, "68 weights are pruned, but no filter, neuron or head whole.*example_inputs=..."),
    "nothing pruned": (lambda: pw.Pruner(mlp()), X, "no weight is pruned"),
    "nothing zero": (mlp, X, "no weight is zero"),
    "no inputs": (mlp, (), "example_inputs=.*give a tensor, a tuple of arguments, or a dict"),
    "a word": (mlp, "x", "example_inputs='x': give a tensor"),
    "another shape": (mlp, torch.randn(2, 5), "Sequential does not run on these example_inputs: mat1 and mat2"),
    "another argument": (mlp, {"y": X}, "does not run on these example_inputs: .*'y'"),
    "no model": (lambda: "model", X, "takes a Pruner or a torch.nn.Module, not a str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    make, inputs, reason = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=reason):
        pw.shrink(make(), inputs)


def test_optimizers_that_are_none_or_anothers():
    model = zero_units(mlp(), X)
    with pytest.raises(TypeError, match="optimizer='adam'"):
        pw.shrink(model, X, "adam")
    with pytest.raises(ValueError, match="this SGD steps no parameter of the Sequential"):
        pw.shrink(model, X, torch.optim.SGD(mlp().parameters(), lr=0.1))


class Deciding(nn.Module):
    def __init__(self, by_input):
        super().__init__()
        self.net, self.by_input = mlp(), by_input

    def forward(self, x):
        h = self.net(x)
        return h if (x if self.by_input else h).sum() > 0 else -h


@pytest.mark.parametrize("by_input", [True, False])
def test_what_is_computed_may_not_decide(by_input):
    model = Deciding(by_input)
    zero_units(model.net, X)
    with pytest.raises(ValueError, match="decides what it does next"):
        pw.shrink(model, X)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, scale=1.0):
        return {"out": [self.net(x) * scale]}


@pytest.mark.parametrize("inputs", [X, (X, 2.0), [X], {"x": X, "scale": 3.0}], ids=["tensor", "tuple", "list", "dict"])
def test_forms_of_inputs(inputs):
    model = Scaled()
    zero_units(model.net, X)
    assert_same(outputs(model, inputs), outputs(pw.shrink(model, inputs)[0], inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype):
    model = zero_units(mlp().to(dtype), X.to(dtype))
    small, _ = pw.shrink(model, X.to(dtype))
    assert small[0].weight.dtype == dtype
    assert small[0].out_features == 4


def test_modes_random_numbers_and_statistics_stay():
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)]
    model = zero_units(nn.Sequential(*layers), X)
    model[3].eval()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    small, _ = pw.shrink(model, X)
    assert torch.equal(random, torch.get_rng_state())
    assert [one.training for one in small] == [one.training for one in model] == [True, True, True, False, True]
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert small[1].num_features == 4


@pytest.mark.parametrize("around", [torch.compile, nn.DataParallel])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_is_around_a_model_is_left_out(around):
    model = zero_units(mlp(), X)
    small, _ = pw.shrink(around(model), X)
    assert type(small) is nn.Sequential
    assert_same(outputs(model, X), outputs(small, X))


def test_frozen_layers_stay_frozen():
    model = mlp()
    model[0].requires_grad_(False)
    small, _ = pw.shrink(zero_units(model, X), X)
    assert [p.requires_grad for p in small.parameters()] == [False, False, True, True, True, True]


@pytest.mark.slow
def test_export(tmp_path):
    pytest.importorskip("onnxruntime", reason="pip install 'prunewald[export]'")
    small, _ = pw.shrink(zero_units(mlp(), X), X)
    assert pw.export.to_onnx(small, X, tmp_path / "small.onnx") < 1e-5
    pw.export.to_torch_export(small, X, tmp_path / "small.pt2")
    program = torch.export.load(tmp_path / "small.pt2").module()
    torch.testing.assert_close(program(X), outputs(small, X)[0], rtol=1e-5, atol=1e-5)
    pw.export.to_safetensors(small, tmp_path / "small.safetensors")
    from safetensors.torch import load_file

    assert load_file(tmp_path / "small.safetensors")["0.weight"].shape == (4, 6)
