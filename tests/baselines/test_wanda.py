"""Wanda's inputs: what each weight meets, and what a model may do while it is read."""

import copy
import gc
import io
import math
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import prunewald as pw
from prunewald.baselines import Wanda
from tests.baselines.helpers import STEPS, Inputs, assert_scores, score
from tests.model.helpers import CONVOLUTIONS
from tests.training import net, one_step, sgd

pytestmark = pytest.mark.usefixtures("one_thread")


def norm_of(x):
    return x.double().square().sum(tuple(range(x.dim() - 1))).sqrt().float()


def test_wanda_is_the_papers_formula():
    model = net()
    seen = []
    model[2].register_forward_pre_hook(lambda module, args: seen.extend(args[0].detach().double().tolist()))
    inputs = Inputs(model)
    optimizer = sgd(model)
    for step in range(STEPS):
        one_step(model, optimizer, step)
    weight = model[2].weight.detach()
    expected = []
    for row in weight.double().tolist():
        for j, w in enumerate(row):
            expected.append(abs(w) * math.sqrt(sum(x[j] ** 2 for x in seen)))
    assert_scores(score(Wanda(), weight, statistic=inputs.value("2.weight")), expected)


def test_a_convolution_in_plain_loops():
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=1)
    inputs = Inputs(module)
    x = torch.randn(2, 2, 5, 6)
    height, width = module(x).shape[2:]
    padded = nn.functional.pad(x, (1, 1, 1, 1)).double().tolist()
    for channel in range(2):
        for i in range(2):
            for j in range(3):
                total = 0.0
                for sample in padded:
                    total += sum(sample[channel][a + i][2 * b + j] ** 2 for a in range(height) for b in range(width))
                for out in range(3):
                    assert float(inputs.value("weight")[out, channel, i, j]) == pytest.approx(math.sqrt(total))


@pytest.mark.parametrize("case", ["1d", "2d-groups", "2d-multiplied"])
def test_every_row_of_a_group_gets_what_its_weights_meet(case):
    module, shape = copy.deepcopy(CONVOLUTIONS[case])
    inputs = Inputs(module)
    weight = torch.zeros_like(module.weight, dtype=torch.float64, requires_grad=True)
    for seed in range(2):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        module(x)
        # A layer is linear in its weight: its summed output at x² has as derivative the sum of x² that each meets.
        module._conv_forward(x.double().square(), weight, None).sum().backward()
    torch.testing.assert_close(inputs.value("weight"), weight.grad.sqrt().float(), rtol=1e-5, atol=1e-5)


def test_a_linear_layer_keeps_one_number_a_feature():
    model = nn.Linear(64, 128)
    inputs = Inputs(model)
    for _ in range(2):
        model(torch.randn(3, 64))
    kept = inputs.state["squares"]["weight"]
    assert kept.shape == model.weight.shape
    assert kept.untyped_storage().nbytes() == 64 * 4


def test_a_copied_state_goes_on():
    """A clone of the view has all the rows."""
    model = nn.Conv2d(4, 6, 3, groups=2)
    first, second = torch.randn(2, 2, 4, 5, 5)
    inputs, whole = Inputs(model), Inputs(model)
    model(first)
    inputs.state = {"trained": 1, "squares": {"weight": inputs.state["squares"]["weight"].clone()}}
    model(second)
    torch.testing.assert_close(inputs.value("weight"), whole.value("weight"))


def test_tied_weights_are_fed_by_both_layers():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    inputs = Inputs(model, ["0.weight"])
    x = torch.randn(5, 6)
    model(x)
    both = torch.cat([x, model[:2](x).detach()])  # this reads x a second time
    torch.testing.assert_close(inputs.value("0.weight"), norm_of(torch.cat([both, x])).expand(6, 6))


def test_a_module_that_is_called_twice_reads_twice():
    layer = nn.Linear(6, 6)
    inputs = Inputs(nn.Sequential(layer, layer), ["0.weight"])
    x = torch.randn(5, 6)
    layer(layer(x))
    assert (inputs.value("0.weight") > norm_of(x)).all()


def test_only_the_named_weights_are_read():
    model = net()
    inputs = Inputs(model, ["2.weight"])
    model(torch.randn(5, 6))
    assert inputs.state["squares"].keys() == {"2.weight"}


def test_what_was_not_called_has_no_value():
    model = nn.ModuleDict({"used": nn.Linear(6, 4), "unused": nn.Linear(6, 4)})
    inputs = Inputs(model)
    model["used"](torch.randn(5, 6))
    assert inputs.value("used.weight") is not None
    assert inputs.value("unused.weight") is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.LSTM(4, 4), "weight_ih_l0"),
        (nn.MultiheadAttention(4, 2), "in_proj_weight"),
        (nn.MultiheadAttention(4, 2), "out_proj.weight"),
        (nn.ConvTranspose2d(4, 4, 3), "weight"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "parametrizations.weight.original1"),
        (nn.Linear(4, 4), "bias"),
    ],
    ids=str,
)
def test_a_weight_whose_inputs_cannot_be_read_is_named(model, name):
    model = nn.Sequential(nn.Linear(4, 4), model)
    with pytest.raises(ValueError, match=f"'1.{name}' is the weight of no nn.Linear.*ignore='1.{name}'"):
        Inputs(model, ["0.weight", f"1.{name}"])
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_the_hooks_go():
    model = net()
    inputs = Inputs(model)
    for handle in inputs.handles:
        handle.remove()
    model(torch.randn(5, 6))
    assert inputs.state == {"trained": 0, "squares": {}}


def test_a_fresh_state_starts_anew():
    model = net()
    inputs = Inputs(model)
    model(torch.randn(5, 6))
    inputs.state = inputs.statistic.init({})
    x = torch.randn(5, 6)
    model(x)
    torch.testing.assert_close(inputs.value("0.weight"), norm_of(x).expand(8, 6))


def test_neither_graph_nor_input_is_held():
    model = net()
    inputs = Inputs(model)
    x = torch.randn(5, 6, requires_grad=True)
    model(x).sum().backward()
    assert not inputs.state["squares"]["2.weight"].requires_grad
    ref = weakref.ref(x)
    del x
    gc.collect()
    assert ref() is None


def test_inference_mode_and_training_go_together():
    model = net()
    inputs = Inputs(model)
    x, y = torch.randn(2, 5, 6)
    with torch.inference_mode():
        model(x)
    model(y).sum().backward()
    with torch.no_grad():
        model(y)
    torch.testing.assert_close(inputs.value("0.weight"), norm_of(torch.cat([x, y, y])).expand(8, 6))
    assert not inputs.state["squares"]["0.weight"].is_inference()


@pytest.mark.parametrize("layer", [nn.Linear(5, 4), nn.Conv1d(3, 4, 3)], ids=str)
def test_autocast_and_low_precision_are_summed_in_float32(layer):
    x = torch.randn(64, 3, 5)
    first = copy.deepcopy(layer)
    exact = Inputs(first)
    first(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = Inputs(layer)
        layer(x)
        torch.testing.assert_close(inputs.value("weight"), exact.value("weight"))
    low = copy.deepcopy(layer).bfloat16()
    inputs = Inputs(low)
    low(x.bfloat16())
    assert inputs.value("weight").dtype == torch.float32
    torch.testing.assert_close(inputs.value("weight"), exact.value("weight"), rtol=1e-3, atol=0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_does_not_read_twice(reentrant):
    model = net()
    inputs = Inputs(model)
    x = torch.randn(5, 6, requires_grad=True)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(inputs.value("0.weight"), norm_of(x.detach()).expand(8, 6))
    assert x.grad is not None


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile causes it, and hides it elsewhere
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_read(backend):
    model = net()
    inputs = Inputs(model)
    compiled = torch.compile(model, backend=backend)
    xs = torch.randn(3, 5, 6)
    expected = copy.deepcopy(model)
    for x in xs:
        compiled(x).sum().backward()
        expected(x).sum().backward()
    torch.testing.assert_close(inputs.value("0.weight"), norm_of(xs).expand(8, 6))
    torch.testing.assert_close(model[0].weight.grad, expected[0].weight.grad)
    inputs.state = inputs.statistic.init({})
    compiled(xs[0])
    torch.testing.assert_close(inputs.value("0.weight"), norm_of(xs[0]).expand(8, 6))


def test_a_copy_of_the_model_feeds_nothing():
    model = net()
    inputs = Inputs(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        other(torch.randn(5, 6))
    assert inputs.state == {"trained": 0, "squares": {}}


def test_evaluation_has_no_say_once_a_training_was_seen():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    pruner = pw.Pruner(model, torch.optim.SGD(model.parameters(), lr=0.1), criterion="wanda")
    x = torch.randn(5, 3)
    model.eval()
    model(100 * x)  # a calibration, if nothing else came
    calibrated = pruner.scores()["0.weight"]
    model.train()
    model(x)
    trained = pruner.scores()["0.weight"]
    torch.testing.assert_close(100 * trained, calibrated)
    model.eval()
    model(1000 * x)
    assert torch.equal(pruner.scores()["0.weight"], trained)
