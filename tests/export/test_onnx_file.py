"""ONNX files hold what the model gives: every output, any batch, and what other tools do with them."""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald import export
from prunewald.export import onnx_file
from prunewald.export.comparing import compared
from prunewald.export.flattening import named_tensors

onnx = pytest.importorskip("onnx", reason="pip install 'prunewald[export]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'prunewald[export]'")
pytestmark = pytest.mark.slow


@dataclass
class Answer:
    scores: torch.Tensor
    hidden: torch.Tensor | None = None


class Many(nn.Module):
    """Outputs of every kind."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, loud=False, state=None):
        y = self.linear(x)
        if mask is not None:
            y = y.masked_fill(mask.unsqueeze(-1), 0.0)
        if state is not None:
            y = y + state[0]
        return {"y": y, "nothing": None, "above": y > 0, "best": y.argmax(-1), "two": (y * 2, [y]), "x": x}


class Object(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return Answer(self.linear(x))


class AtOne(nn.Module):
    """Does something else with a batch of one."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y.squeeze(0) if x.shape[0] == 1 else y


def served(path, **inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, {n: x.numpy() for n, x in inputs.items()}), strict=True))


def first_dimensions(path):
    shapes = {one.name: one.type.tensor_type.shape.dim[0] for one in onnx.load(path).graph.input}
    return {name: dim.dim_value or "open" for name, dim in shapes.items()}


def test_every_output_is_there_by_its_name(tmp_path):
    model, path = Many(), tmp_path / "model.onnx"
    given = {"state": (torch.randn(3, 5, 4), None), "mask": torch.rand(3, 5) > 0.5, "x": torch.randn(3, 5, 4)}
    assert export.to_onnx(model, {**given, "loud": True}, path) < 1e-5
    got = served(path, x=given["x"], mask=given["mask"], state_0=given["state"][0])
    wanted = model(**given)
    assert set(got) == {"y", "above", "best", "two_0", "two_1_0", "x_output"}
    assert np.array_equal(got["above"], wanted["above"].numpy())
    assert np.array_equal(got["best"], wanted["best"].numpy())
    np.testing.assert_allclose(got["two_0"], wanted["two"][0].detach(), rtol=1e-4, atol=1e-6)
    assert np.array_equal(got["x_output"], given["x"].numpy())
    onnx.checker.check_model(onnx.load(path), full_check=True)


def test_an_object_and_a_tuple_are_outputs_too(tmp_path):
    path = tmp_path / "model.onnx"
    assert export.to_onnx(Object(), torch.randn(2, 4), path) < 1e-5
    assert set(served(path, x=torch.randn(5, 4))) == {"scores"}
    assert export.to_onnx(nn.LSTM(4, 5, batch_first=True), torch.randn(3, 6, 4), path) < 1e-5
    assert set(served(path, input=torch.randn(3, 6, 4))) == {"output_0", "output_1_0", "output_1_1"}


def test_weights_keep_their_names_and_no_path_of_this_machine_is_in_the_file(tmp_path):
    path = tmp_path / "model.onnx"
    export.to_onnx(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4), path)
    assert {one.name for one in onnx.load(path).graph.initializer} == {"0.weight", "0.bias"}
    assert str(torch.__file__).encode().rpartition(b"/")[0] not in path.read_bytes()
    assert __file__.encode() not in path.read_bytes()


def test_what_is_no_tensor_is_left_out_and_said(tmp_path):
    class Counts(nn.Module):
        def forward(self, x):
            return {"y": x * 2, "count": 3}

    with pytest.warns(UserWarning, match=r"'count' \(a int\)"):
        export.to_onnx(Counts(), torch.randn(2, 4), tmp_path / "model.onnx")
    assert set(served(tmp_path / "model.onnx", x=torch.randn(3, 4))) == {"y"}


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_of_one_that_torch_fixes_is_fixed_in_the_file(tmp_path):
    path = tmp_path / "model.onnx"
    with pytest.warns(UserWarning, match=r"\('x' to 1\).*dynamic_shapes=None"):
        export.to_onnx(AtOne(), torch.randn(1, 4), path)
    assert first_dimensions(path) == {"x": 1}
    export.to_onnx(AtOne(), torch.randn(2, 4), path)
    assert served(path, x=torch.randn(7, 4))["output"].shape == (7, 4)


@pytest.mark.filterwarnings("error")
def test_shapes_are_fixed_when_asked_for_and_torchs_own_are_passed_on(tmp_path):
    path, model = tmp_path / "model.onnx", Object()
    export.to_onnx(model, torch.randn(1, 4), path, dynamic_shapes=None)
    assert first_dimensions(path) == {"x": 1}
    export.to_onnx(model, torch.randn(2, 3, 4), path, dynamic_shapes={"x": {1: torch.export.Dim("length")}})
    assert served(path, x=torch.randn(2, 9, 4))["scores"].shape == (2, 9, 4)
    assert first_dimensions(path) == {"x": 2}


def test_the_version_of_the_operators(tmp_path):
    export.to_onnx(Object(), torch.randn(2, 4), tmp_path / "model.onnx", opset=21)
    assert [one.version for one in onnx.load(tmp_path / "model.onnx").opset_import if not one.domain] == [21]
    with pytest.raises(ValueError, match="opset=7: give a whole number from 18"):
        export.to_onnx(Object(), torch.randn(2, 4), tmp_path / "other.onnx", opset=7)


# ---- tolerances ------------------------------------------------------------------------------------------------------


def test_each_output_is_judged_by_its_own_largest_and_its_dtype():
    wanted = {"big": torch.tensor([1000.0]), "small": torch.tensor([0.001])}
    near = {"big": torch.tensor([1000.01]), "small": torch.tensor([0.001])}
    assert compared(near, wanted, None, "it") == pytest.approx(1e-5, rel=1e-2)
    with pytest.raises(ValueError, match=r"'small' differs.*tolerance=0.0001"):
        compared({**wanted, "small": torch.tensor([0.00101])}, wanted, None, "it")
    half = {"y": torch.tensor([1.0, 2.0]).half()}
    assert compared({"y": torch.tensor([1.005, 2.0]).half()}, half, None, "it") > 1e-4
    with pytest.raises(ValueError, match=r"tolerance=0.001"):
        compared({"y": torch.tensor([1.005, 2.0]).half()}, half, 0.001, "it")


def test_integers_bools_and_shapes_are_exact_and_infinities_equal():
    flags = {"flag": torch.tensor([True, False])}
    with pytest.raises(ValueError, match="'flag'.*1 of 2 entries"):
        compared({"flag": torch.tensor([True, True])}, flags, 1.0, "it")
    with pytest.raises(ValueError, match=r"\(2,\).*\(1, 2\)"):
        compared({"y": torch.ones(2)}, {"y": torch.ones(1, 2)}, None, "it")
    masked = {"y": torch.tensor([-torch.inf, 1.0, torch.nan])}
    assert compared(masked, masked, None, "it") == 0
    with pytest.raises(ValueError, match="differs from the model's by (nan|inf)"):
        compared({"y": torch.tensor([0.0, 1.0, torch.nan])}, masked, None, "it")


def test_outputs_have_names_wherever_they_are():
    x = torch.ones(1)
    found, others = named_tensors({"a": (x, x), "a_0": x, "b": Answer(x), "c": [None, "text"]})
    assert list(found) == ["a_0", "a_1", "a_0_", "b_scores"]
    assert others == {"c_1": "a str"}
    assert list(named_tensors(x)[0]) == ["output"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes(tmp_path, dtype):
    export.to_onnx(Object().to(dtype), torch.randn(2, 4, dtype=dtype), tmp_path / "model.onnx")
    assert served(tmp_path / "model.onnx", x=torch.randn(3, 4, dtype=dtype))["scores"].shape == (3, 4)


def test_what_onnxruntime_cannot_run_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"onnxruntime cannot run.*model\.float\(\)"):
        export.to_onnx(Object().bfloat16(), torch.randn(2, 4).bfloat16(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


# ---- inputs that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([torch.ones(2, 4)], "a list.*give a tensor, a tuple"),
        ({"y": torch.ones(2, 4)}, r"keywords y.*\(x\)"),
        ((torch.ones(2, 4), torch.ones(2, 4)), "2 by position"),
        ({"x": np.ones((2, 4), np.float32)}, "'x' is a ndarray: give a torch tensor"),
        (torch.ones(2, 4, device="meta"), "'x' is on meta, and the model on cpu"),
    ],
)
def test_inputs_that_cannot_be_any_are_named(tmp_path, inputs, match):
    for write in (export.to_onnx, export.to_torch_export):
        with pytest.raises((TypeError, ValueError), match=match):
            write(Object(), inputs, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_one_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_MOST", 10)
    with pytest.raises(ValueError, match=r"model\.half\(\).*to_torch_export"):
        export.to_onnx(Object(), torch.randn(2, 4), tmp_path / "model.onnx")


# ---- what others do with it ------------------------------------------------------------------------------------------


def pruned_mlp(sparsity=0.9):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 80), nn.ReLU(), nn.Linear(80, 10))
    pw.Pruner(model, criterion="magnitude", scope="layer").prune(sparsity)
    return model


@pytest.mark.filterwarnings("ignore")  # onnxruntime's own
def test_onnxruntimes_dynamic_quantisation_takes_the_file(tmp_path):
    from onnxruntime.quantization import quantize_dynamic

    model, x = pruned_mlp(), torch.randn(4, 100)
    export.to_onnx(model, x, tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "int8.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node]
    assert kinds.count("MatMulInteger") == 2
    (got,) = served(tmp_path / "int8.onnx", input=x).values()
    assert float((torch.from_numpy(got) - model(x)).abs().max() / model(x).abs().max()) < 0.1


def test_sparse_initializers_are_smaller_and_run(tmp_path):
    model, x = pruned_mlp(), torch.randn(4, 100)
    dense, sparse = tmp_path / "dense.onnx", tmp_path / "sparse.onnx"
    export.to_onnx(model, x, dense)
    assert export.to_onnx(model, x, sparse, sparse=True) < 1e-5
    graph = onnx.load(sparse).graph
    assert {one.values.name for one in graph.sparse_initializer} == {"0.weight", "2.weight"}
    assert sum(one.values.dims[0] for one in graph.sparse_initializer) == 880
    assert sparse.stat().st_size < 0.6 * dense.stat().st_size
    assert np.array_equal(served(sparse, input=x)["output"], served(dense, input=x)["output"])


def test_weights_with_few_zeros_stay_dense_and_empty_ones_run(tmp_path):
    model, x = pruned_mlp(0.5), torch.randn(4, 100)
    with torch.no_grad():
        model[2].weight.zero_()
    export.to_onnx(model, x, tmp_path / "model.onnx", sparse=True)
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert {one.values.name for one in graph.sparse_initializer} == {"2.weight"}


def test_a_missing_extra_is_named_before_anything_runs(tmp_path, monkeypatch):
    from prunewald.quantisation import to_onnx

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for write in (export.to_onnx, to_onnx):
        with pytest.raises(ImportError, match=r"onnxruntime: pip install 'prunewald\[export\]'"):
            write(Object(), torch.randn(2, 4), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
