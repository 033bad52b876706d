"""Exports run elsewhere and give what the model gives."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import prunewald as pw
from prunewald import export


def pruned():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 5)
    )
    model(torch.randn(8, 1, 6, 6))
    pruner = pw.Pruner(model, criterion="magnitude", scope="layer")
    pruner.prune(0.8)
    return model, pruner


@pytest.fixture
def x():
    return torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def outputs(model, x):
    with torch.no_grad():
        return model.eval()(x)


def test_a_name_that_safetensors_keeps_for_itself_is_refused(tmp_path):
    model = nn.Linear(2, 2)
    model.register_buffer("__metadata__", torch.ones(2))
    with pytest.raises(ValueError, match="'__metadata__'.*another"):
        export.to_safetensors(model, tmp_path / "f.safetensors")
    assert not list(tmp_path.iterdir())


def test_safetensors_load_into_the_plain_model(tmp_path, x):
    from safetensors.torch import load_model

    model, _ = pruned()
    export.to_safetensors(model, tmp_path / "model.safetensors")
    fresh, earlier = pruned()
    earlier.detach()
    for param in fresh.parameters():
        nn.init.normal_(param)
    load_model(fresh, tmp_path / "model.safetensors")
    assert torch.equal(outputs(fresh, x), outputs(model, x))
    assert int((fresh[5].weight == 0).sum()) == round(0.8 * 320)


def test_tied_tensors_are_written_once(tmp_path):
    from safetensors.torch import load_file, load_model

    def tied():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    model, fresh = tied(), tied()
    export.to_safetensors(model, tmp_path / "model.safetensors")
    assert "1.weight" not in load_file(tmp_path / "model.safetensors")
    load_model(fresh, tmp_path / "model.safetensors")
    assert torch.equal(fresh[1].weight, model[0].weight)


@pytest.mark.slow
def test_onnx_runs_in_onnxruntime_with_any_batch(tmp_path, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, _ = pruned()
    model.train()
    difference = export.to_onnx(model, x, tmp_path / "model.onnx")
    assert difference < 1e-5
    assert model.training
    assert model[4].training
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    many = torch.randn(7, 1, 6, 6)
    (got,) = session.run(None, {session.get_inputs()[0].name: many.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), outputs(model, many), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_onnx_that_differs_is_not_written(tmp_path, x):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match=r"tolerance=-1.0.*nothing was written"):
        export.to_onnx(pruned()[0], x, tmp_path / "model.onnx", tolerance=-1.0)
    assert not list(tmp_path.iterdir())


def test_torch_export_needs_no_code_of_the_model(tmp_path, x):
    model, _ = pruned()
    export.to_torch_export(model, x, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    torch.testing.assert_close(program.module()(x), outputs(model, x))
    assert program.module()(torch.randn(5, 1, 6, 6)).shape == (5, 5)


def test_the_form_of_torchs_own_pruning_and_back(x):
    model, pruner = pruned()
    state = export.to_torch_prune(model, pruner.masks)
    fresh, earlier = pruned()
    earlier.detach()
    for layer in (fresh[0], fresh[5]):
        prune.identity(layer, "weight")
    fresh.load_state_dict(state)
    assert torch.equal(outputs(fresh, x), outputs(model, x))
    plain, masks = export.from_torch_prune(fresh.state_dict())
    assert plain.keys() == model.state_dict().keys()
    assert all(torch.equal(plain[n], t) for n, t in model.state_dict().items())
    assert all(torch.equal(masks[n], m) for n, m in pruner.masks.items())
    pruner.detach()
    model[5].weight.data.normal_()
    other = pw.Pruner(model)
    other.set_masks(masks)
    assert other.sparsity == pruner.sparsity


def test_a_compiled_model_has_the_names_of_the_one_inside(tmp_path, x):
    from safetensors.torch import load_file

    model, pruner = pruned()
    compiled = torch.compile(model)
    export.to_safetensors(compiled, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()
    export.to_torch_export(compiled, x, tmp_path / "model.pt2")
    assert torch.export.load(tmp_path / "model.pt2").state_dict.keys() >= dict(model.named_parameters()).keys()
    assert export.to_torch_prune(compiled, pruner.masks).keys() == export.to_torch_prune(model, pruner.masks).keys()


def test_what_does_not_fit_is_named():
    model, pruner = pruned()
    with pytest.raises(ValueError, match=r"'7\.weight' is no parameter"):
        export.to_torch_prune(model, {"7.weight": pruner.masks["5.weight"]})
    with pytest.raises(ValueError, match=r"'a_orig' has no 'a_mask'"):
        export.from_torch_prune({"a_orig": torch.ones(2)})
    with pytest.raises(FileNotFoundError, match="nowhere"):
        export.to_safetensors(model, "nowhere/model.safetensors")


def test_a_buffer_that_is_called_a_mask_is_none_of_torchs():
    state = {"a_orig": torch.ones(2), "a_mask": torch.tensor([1.0, 0.0]), "causal_mask": torch.ones(3)}
    weights, masks = export.from_torch_prune(state)
    assert weights.keys() == {"a", "causal_mask"}
    assert masks.keys() == {"a"}
