"""What trained quantisation learned as int8 initializers, in nodes that onnxruntime runs by its int8 kernels."""

import numpy as np
import pytest
import torch
from torch import nn

from prunewald.quantisation import LinearValues, to_onnx
from tests.quantisation.helpers import pruned

onnx = pytest.importorskip("onnx", reason="pip install 'prunewald[export]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'prunewald[export]'")
pytestmark = pytest.mark.slow


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))


def cnn():
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16, 10)).eval()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        return self.layer(x)


def kinds(path, tmp_path):
    """What onnxruntime makes of the file."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]


def constants(path):
    return {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}


CASES = {
    "mlp": (mlp, (4, 40), 2, "DynamicQuantizeMatMul", "QGemm"),
    "cnn": (cnn, (4, 1, 6, 6), 1, "DynamicQuantizeMatMul", "QLinearConv"),
    "attention": (Attention, (3, 5, 16), 4, "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
}


@pytest.mark.parametrize("per", ["target", "row"])
@pytest.mark.parametrize("ranged", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("case", CASES)
def test_the_initializers_are_the_codes_and_int8_kernels_run(tmp_path, case, ranged, per):
    make, shape, count, dynamic, static = CASES[case]
    model, _, pruner = pruned(model=make(), sparsity=0.5)
    model.eval()
    linear, path, x = LinearValues(pruner, 8, per=per), tmp_path / "int8.onnx", torch.randn(shape)
    made = to_onnx(pruner, x, path, data=[x, x / 2] if ranged else None)
    written, codes, scales = constants(path), linear.codes(), linear.scales()
    rows = [line for line in made.layers if line.way]
    assert len(rows) == (len(codes) if ranged else count)
    for line in rows:
        (found,) = (array for name, array in written.items() if name.startswith(f"{line.name}_codes"))
        wanted = codes[line.name].numpy()
        assert found.dtype == np.int8
        assert np.array_equal(found, wanted) or np.array_equal(found, wanted.T)
        assert not written[f"{line.name}_zero"].any()
        assert written[f"{line.name}_zero"].shape == (() if per == "target" else (len(scales[line.name]),))
        assert np.array_equal(written[f"{line.name}_scale"].reshape(-1), scales[line.name].reshape(-1).numpy())
        assert line.name not in written, "the float weight is gone"
    onnx.checker.check_model(onnx.load(path), full_check=True)
    ran = kinds(path, tmp_path)
    assert (static if ranged else dynamic) in ran
    if case == "mlp":
        assert not {"Gemm", "MatMul", "FusedGemm"} & set(ran)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    more = torch.cat([x, x])
    (got,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    with torch.no_grad():
        wanted = model(more)
    assert float((torch.from_numpy(got) - wanted).abs().max() / wanted.abs().max()) < 0.05
    assert made.difference < 0.05
    assert made.bytes == path.stat().st_size


def test_a_model_that_was_not_trained_so_is_rounded_and_says_at_what_error(tmp_path):
    made = to_onnx(mlp(), torch.randn(4, 40), tmp_path / "int8.onnx")
    assert [line.codes for line in made.layers] == ["rounded", "rounded"]
    assert 0 < made.layers[0].error < 0.02
    assert "2 of 2 weights run as int8" in str(made)
    assert "<table>" in made._repr_html_()


def test_weights_that_torch_ties_or_turns(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(600, 256), nn.Linear(256, 600, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    made = to_onnx(Tied(), torch.randint(0, 600, (3, 4)), tmp_path / "int8.onnx")
    assert [line.way for line in made.layers] == ["dynamic"]
    assert "Transpose" not in [node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node]


def test_a_weight_that_is_inputs_by_outputs(tmp_path):
    class Turned(nn.Module):
        def __init__(self, scale):
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.weight = nn.Parameter(torch.randn(30, 20, generator=generator) * scale)

        def forward(self, x):
            return x @ self.weight

    x = torch.randn(4, 30)
    _, _, pruner = pruned(model=Turned(1.0), sparsity=0.5, targets=["weight"])
    linear = LinearValues(pruner, 8)
    to_onnx(pruner, x, tmp_path / "int8.onnx")
    assert np.array_equal(constants(tmp_path / "int8.onnx")["weight_codes_turned"], linear.codes()["weight"].numpy())
    linear.detach()
    LinearValues(pruner, 8, per="row")
    with pytest.raises(ValueError, match="a scale for each input.*per='target'"):
        to_onnx(pruner, x, tmp_path / "other.onnx")
    made = to_onnx(Turned(torch.logspace(-3, 0, 20)), x, tmp_path / "rounded.onnx")
    assert made.layers[0].error < 0.02, "rounded output by output"


def test_percentiles_leave_out_what_is_far(tmp_path):
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(0))
    far = x.clone()
    far[0, 0] = 1000.0
    widths = []
    for percentile in (100.0, 99.0):
        to_onnx(mlp(), x, tmp_path / "int8.onnx", data=[(far, torch.ones(64))], percentile=percentile, tolerance=2.0)
        widths.append(float(constants(tmp_path / "int8.onnx")["input_int8_scale"]) * 255)
    assert widths[0] == pytest.approx(1000 - float(x.min()), rel=0.1)
    assert widths[1] < 10


def test_what_stays_float_says_why(tmp_path):
    _, _, pruner = pruned(model=mlp(), sparsity=0.5)
    made = to_onnx(LinearValues(pruner, {"0": 4}), torch.randn(4, 40), tmp_path / "int8.onnx")
    assert [line.way for line in made.layers] == ["dynamic", ""]
    assert "no target of LinearValues" in str(made)
    made = to_onnx(cnn(), torch.randn(4, 1, 6, 6), tmp_path / "int8.onnx")
    assert str(made).count("a convolution needs ranges of its inputs: give data=") == 2


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (nn.Conv2d(1, 1, 3), {}, "'weight': a convolution.*give data="),
        (nn.Linear(40, 4).double(), {}, r"float64.*model\.float\(\)"),
        (nn.Linear(40, 4), {"data": [torch.ones(2, 3)]}, r"data: onnxruntime cannot take.*\(2, 3\)"),
        (nn.Linear(40, 4), {"data": torch.ones(2, 40)}, "one batch"),
        (nn.Linear(40, 4), {"percentile": 20}, "percentile=20"),
        (nn.Linear(40, 4), {"tolerance": 1e-9}, "the int8 file's output 'output' differs.*tolerance=1e-09"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(tmp_path, model, options, match):
    shape = (2, 1, 5, 5) if isinstance(model, nn.Conv2d) else (4, 40)
    with pytest.raises((TypeError, ValueError), match=match):
        to_onnx(model, torch.randn(shape).to(model.weight.dtype), tmp_path / "int8.onnx", **options)
    assert not list(tmp_path.iterdir())
