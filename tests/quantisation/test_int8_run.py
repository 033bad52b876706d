"""What trained quantisation learned runs in torch's int8 kernels, where these are faster."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.quantisation import LinearValues, int8_run, run_int8
from prunewald.quantisation.int8_codes import rounded
from prunewald.quantisation.int8_layers import Int8Linear
from tests.quantisation.helpers import pruned


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))


@pytest.fixture
def clock(monkeypatch):
    """Seconds that layers are said to take, by the name of the way."""
    seconds = {"float": 1.0, "int8": 0.5}

    def race(ways, base):
        for way in ways.values():
            way()
        return {name: [seconds[name]] * 5 for name in ways}

    monkeypatch.setattr(int8_run, "race", race)
    return seconds


@pytest.mark.parametrize("sparsity", [0.0, 0.8])
@pytest.mark.parametrize("per", ["target", "row"])
def test_the_codes_run_unchanged(clock, per, sparsity):
    model, _, pruner = pruned(model=mlp(), sparsity=sparsity)
    linear, before = LinearValues(pruner, 8, per=per), copy.deepcopy(model.state_dict())
    x = torch.randn(6, 40)
    fast = run_int8(pruner, x)
    for name, layer in (("0.weight", fast[0]), ("2.weight", fast[2])):
        assert type(layer) is Int8Linear
        assert layer.codes.dtype == torch.int8
        assert torch.equal(layer.codes, linear.codes()[name])
        assert torch.equal(layer.weight, model.get_parameter(name))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))
    with torch.no_grad():
        difference = float((fast(x) - model(x)).abs().max() / model(x).abs().max())
    assert fast.report.difference == pytest.approx(difference, rel=1e-3)
    assert 0 < difference < 0.03
    assert "trained" in str(fast.report)
    assert "rounded to int8 here" not in str(fast.report)


def test_whole_numbers_are_multiplied_exactly():
    """Inputs that int8 holds: what comes out is the float layer's to the last bits."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(300, 50)
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-127, 128, (50, 300), generator=generator).float())
        layer.weight[:, 0] = 127
    x = torch.randint(-127, 128, (7, 300), generator=generator).float()
    x[:, 0] = 127
    made = Int8Linear(rounded(layer.weight), layer.bias)
    with torch.no_grad():
        torch.testing.assert_close(made(x), layer(x), rtol=1e-6, atol=1e-2)


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 30), (1, 1), (33, 7), (257, 3), (64, 129)])
def test_every_shape(inputs, outputs):
    """Sizes that are no multiple of what a kernel takes at once."""
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs)
    made = Int8Linear(rounded(layer.weight.detach()), layer.bias)
    for samples in (1, 2, 17, 64):
        x = torch.randn(samples, inputs)
        with torch.no_grad():
            wanted = layer(x)
        torch.testing.assert_close(made(x), wanted, rtol=0.0, atol=0.05 * float(wanted.abs().max()))


def test_every_kind_of_input_and_the_float_way():
    torch.manual_seed(0)
    layer = nn.Linear(40, 30)
    made = Int8Linear(rounded(layer.weight.detach()), layer.bias)
    bare = Int8Linear(rounded(layer.weight.detach()), None)
    for shape in ((5, 40), (2, 3, 40), (40,), (0, 40)):
        x = torch.randn(shape)
        torch.testing.assert_close(made(x), layer(x).detach(), rtol=0.05, atol=0.05)
        torch.testing.assert_close(bare(x), F.linear(x, layer.weight).detach(), rtol=0.05, atol=0.05)
    assert torch.equal(made(torch.zeros(2, 40)), layer.bias.detach().expand(2, 30))
    x = torch.randn(2, 40, requires_grad=True)
    made(x).sum().backward()
    torch.testing.assert_close(x.grad, made.weight.sum(0).expand(2, 40))
    assert made(torch.randn(2, 40).bfloat16()).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        made(torch.randn(2, 7))


def test_slower_rows_are_printed_and_never_chosen(clock):
    clock["int8"] = 2.0
    model = mlp()
    fast = run_int8(model, torch.randn(4, 40))
    assert [type(layer) for layer in fast] == [nn.Linear, nn.ReLU, nn.Linear]
    assert not fast.report.replaced
    assert [line.way for line in fast.report.layers] == ["", ""]
    assert str(fast.report).count("not clearly faster: int8 takes 2.00 of float") == 2
    assert [(line.dense, line.int8) for line in fast.report.layers] == [(1.0, 2.0)] * 2


def test_outputs_that_differ_too_much_are_not_chosen(clock):
    fast = run_int8(mlp(), torch.randn(4, 40), tolerance=1e-6)
    assert not fast.report.replaced
    assert "differ by more than tolerance=1e-06" in str(fast.report)


def test_a_model_that_was_not_trained_so_is_rounded_and_says_at_what_error(clock):
    model = mlp()
    fast = run_int8(model, torch.randn(4, 40))
    assert [line.codes for line in fast.report.layers] == ["rounded", "rounded"]
    weight = model[0].weight.detach()
    error = float((fast[0].weight - weight).norm() / weight.norm())
    assert fast.report.layers[0].error == pytest.approx(error, rel=1e-3)
    assert "2 of the weights rounded to int8 here" in str(fast.report)
    assert "<table>" in fast.report._repr_html_()
    assert fast.report.to_dict()["layers"][0]["faster"] == 2.0


def test_a_file_of_a_quantised_model_runs_with_its_codes(clock, tmp_path):
    model, _, pruner = pruned(model=mlp(), sparsity=0.5)
    LinearValues(pruner, 4)
    pw.save(pruner, tmp_path / "model.pw")
    other = mlp()
    pw.load(tmp_path / "model.pw", into=other)
    fast = run_int8(other, torch.randn(4, 40))
    assert [line.codes for line in fast.report.layers] == ["found", "found"]
    torch.testing.assert_close(fast[0].weight, model[0].weight.detach(), rtol=1e-6, atol=0)


def test_saved_whole_copied_and_by_state_dict_it_is_the_same(clock):
    fast, x = run_int8(mlp(), torch.randn(4, 40)), torch.randn(3, 40)
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), fast(x))
    other = copy.deepcopy(fast)
    other[0].codes.zero_()
    other.load_state_dict(fast.state_dict())
    assert torch.equal(other(x), fast(x))
    with pytest.raises(RuntimeError, match=r"torch.float16.*run_int8\(\) again"):
        fast.half()


def test_layers_that_cannot_say_why(clock):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head, self.spare = nn.Embedding(50, 20), nn.Linear(20, 50, bias=False), nn.Linear(2, 2)
            self.head.weight = self.embed.weight
            self.hooked = nn.Linear(20, 20)
            self.hooked.register_forward_hook(lambda module, given, got: got * 2)

        def forward(self, x):
            return self.head(self.hooked(self.embed(x)))

    fast = run_int8(Tied(), torch.randint(0, 50, (3, 4)))
    assert {line.name: line.way or line.reason.split(",")[0] for line in fast.report.layers} == {
        "head": "int8",
        "spare": "the example does not call it",
        "hooked": "has hooks",
    }


def test_the_hooks_of_a_pruner_are_no_hindrance(clock):
    model, _, pruner = pruned(model=mlp())
    assert sum(len(module._forward_pre_hooks) for module in model.modules())
    fast = run_int8(pruner, {"input": torch.randn(4, 40)})
    assert [line.way for line in fast.report.layers] == ["int8", "int8"]


def test_one_linear_layer_alone(clock):
    assert type(run_int8(nn.Linear(8, 4), torch.randn(2, 8))) is Int8Linear


@pytest.mark.parametrize(
    ("model", "inputs", "match"),
    [
        (nn.Conv2d(1, 1, 3), torch.ones(1, 1, 5, 5), r"no nn.Linear.*quantisation\.to_onnx"),
        (nn.Linear(2, 2).double(), torch.ones(1, 2).double(), r"float64.*model\.float\(\)"),
        (nn.Linear(2, 2, device="meta"), torch.ones(1, 2, device="meta"), r"on meta.*model\.cpu\(\)"),
        (nn.Linear(2, 2), None, "a NoneType.*give a tensor"),
    ],
)
def test_what_cannot_run_is_refused(model, inputs, match):
    with pytest.raises((TypeError, ValueError), match=match):
        run_int8(model, inputs)


def test_a_real_race_ends():
    fast = run_int8(nn.Sequential(nn.Linear(64, 64)), torch.randn(2, 64))
    assert fast.report.layers[0].dense > 0
    assert fast.report.layers[0].int8 > 0


def test_a_compiled_model_runs_as_the_one_inside(clock):
    fast = run_int8(torch.compile(mlp()), torch.randn(4, 40))
    assert [line.name for line in fast.report.layers] == ["0", "2"]
    assert type(fast[0]) is Int8Linear
