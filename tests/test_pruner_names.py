"""Names are those of the plain model, whatever is around it or around single layers of it."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import prunewald as pw
from tests.adapters import get_peft_model
from tests.training import assert_zeros, batch, loss_of, train, wide

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch's own, while it traces a layer
]

NAMES = ["0.weight", "2.weight", "4.weight"]


def compiled_layers(model):
    """Each layer that has weights compiled by itself, as for large models, where one graph is too much."""
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, name, torch.compile(layer, backend="eager"))
    return model


def compiled_in_place(model):
    for layer in model:
        layer.compile(backend="eager")
    return model


def compiled_whole(model):
    model.compile(backend="eager")
    return model


def parallel_layers(model):
    model[2] = nn.DataParallel(model[2])
    return model


LAYERS = {"compiled": compiled_layers, "in place": compiled_in_place, "parallel": parallel_layers}
WAYS = {**LAYERS, "whole": compiled_whole}


@pytest.mark.parametrize("way", WAYS)
def test_single_layers_that_are_wrapped_keep_their_plain_names_everywhere(way, tmp_path):
    model = WAYS[way](wide())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, targets=["0", "2.weight", "*4*"], ignore="4.bias")
    train(model, optimizer, 3)
    report = pruner.prune({"0.weight": 0.5, "2": 0.8, "4*": 0.3})
    assert [row.name for row in report.rows] == list(pruner.masks) == list(pruner.sigma()) == NAMES
    assert list(pruner.state_dict()["masks"]) == NAMES
    train(model, optimizer, 3)
    fresh = wide(1)
    pw.save(pruner, tmp_path / "a.pw")
    pw.load(tmp_path / "a.pw", into=fresh)
    assert list(pw.load(tmp_path / "a.pw")) == list(fresh.state_dict())
    assert_zeros(fresh, pruner.masks)
    model.eval()
    torch.testing.assert_close(fresh(batch(0)[0]), model(batch(0)[0]))
    other = WAYS[way](wide(2))
    pw.load(tmp_path / "a.pw", into=other)
    torch.testing.assert_close(other(batch(0)[0]), model(batch(0)[0]))


@pytest.mark.parametrize("way", LAYERS)
def test_a_wrapped_layer_is_guarded_as_a_plain_one(way):
    model = LAYERS[way](wide())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(0.8)
    dense = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
    model.load_state_dict(dense, assign=True)
    with pytest.warns(UserWarning, match=r"'0.weight'.*reset\(\)"):
        model(batch(0)[0])
    assert pruner.sparsity == pytest.approx(0.8)
    for param in model.parameters():
        param.data.fill_(1.0)
    with pytest.warns(UserWarning, match="'0.weight'.*set to zero"):
        model.eval()(batch(0)[0])
    assert pruner.sparsity == pytest.approx(0.8)


def test_masks_and_states_go_from_a_compiled_model_to_a_plain_one_and_back():
    compiled, plain = compiled_layers(wide()), wide()
    first = pw.Pruner(compiled, criterion="magnitude")
    first.prune(0.8)
    second = pw.Pruner(plain, criterion="magnitude")
    second.load_state_dict(first.state_dict())
    assert_zeros(plain, first.masks)
    third = pw.Pruner(compiled_layers(wide()), criterion="magnitude")
    third.set_masks(second.masks)
    pw.masks.apply_(compiled_layers(wide()), second.masks)
    assert third.sparsity == pytest.approx(0.8)


def test_a_layer_that_is_compiled_after_attaching(tmp_path):
    model = wide()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    pruner = pw.Pruner(model, optimizer)
    pruner.prune(0.5)
    compiled_layers(model)
    train(model, optimizer, 3)
    assert [row.name for row in pruner.prune(0.8).rows] == NAMES
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    pw.save(pruner, tmp_path / "a.pw")
    assert_zeros(pw.load(tmp_path / "a.pw", into=wide(1)), pruner.masks)


def test_an_averaged_copy_of_a_model_with_compiled_layers_is_followed():
    model = compiled_layers(wide())
    average = AveragedModel(model)
    pruner = pw.Pruner(model, criterion="magnitude", scope="layer")
    pruner.follow(average)
    pruner.prune(0.8)
    assert average.module.get_parameter("0._orig_mod.weight").count_nonzero() == 24


def test_parameters_can_still_be_given_themselves():
    model = compiled_layers(wide())
    pruner = pw.Pruner(model, criterion="magnitude", targets=[model[0].weight, model[4]._orig_mod])
    assert list(pruner.masks) == ["0.weight", "4.weight"]


# ---- peft --------------------------------------------------------------------------------------------------------


def adapters(model):
    """The adapters of a model, which alone are trained."""
    return [param for name, param in model.named_parameters() if "lora_" in name]


def really_adapted(model, targets):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets))


@pytest.mark.parametrize("adapted", [get_peft_model, really_adapted], ids=["transcribed", "peft"])
def test_a_model_with_adapters_has_the_names_of_the_plain_one(adapted, tmp_path):
    """As far as it is the plain one: adapters are modules of the layer that they adapt."""
    model = adapted(wide(), ["0", "4"])
    optimizer = torch.optim.Adam(adapters(model), lr=1e-2)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", targets=["0.weight", "2", "4.weight"])
    report = pruner.prune(0.8)
    assert [row.name for row in report.rows] == list(pruner.masks) == NAMES
    train(model, optimizer, 3)
    torch.testing.assert_close(pruner.model(batch(0)[0]), model(batch(0)[0]))
    pw.save(pruner, tmp_path / "adapted.pw")
    assert {"0.weight", "2.weight", "0.lora_A.default.weight"} <= set(pw.load(tmp_path / "adapted.pw"))
    with pytest.raises(ValueError, match="lora_A"):
        pw.load(tmp_path / "adapted.pw", into=wide(1))
    again = adapted(wide(1), ["0", "4"])
    pw.load(tmp_path / "adapted.pw", into=again)
    torch.testing.assert_close(again(batch(0)[0]), model(batch(0)[0]))
    unloaded = model.base_model.unload()
    pw.save(unloaded, tmp_path / "plain.pw")
    assert_zeros(pw.load(tmp_path / "plain.pw", into=wide(1)), pruner.masks)


def test_the_masks_of_a_plain_model_are_those_of_the_adapted_one():
    first = pw.Pruner(wide(), criterion="magnitude")
    first.prune(0.8)
    second = pw.Pruner(get_peft_model(wide(), ["0", "4"]), criterion="magnitude", ignore="*lora*")
    second.load_state_dict(first.state_dict())
    assert second.sparsity == pytest.approx(0.8)


def test_what_is_written_to_the_base_of_an_adapted_model_is_found():
    model = get_peft_model(wide(), ["0", "4"])
    pruner = pw.Pruner(model, torch.optim.Adam(adapters(model)), criterion="magnitude", targets=["0.weight", "2"])
    pruner.prune(0.8)
    for param in model.parameters():
        param.data.add_(1.0)  # as merging adapters does
    with pytest.warns(UserWarning, match="'0.weight'.*set to zero"):
        model.eval()(batch(0)[0])
    assert pruner.sparsity == pytest.approx(0.8)


def test_the_view_of_an_adapted_model_trains_and_copies():
    model = get_peft_model(wide(), ["0", "4"])
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune(0.5)
    loss_of(pruner.model, 0).backward()
    assert all(param.grad is not None for param in adapters(model))
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(batch(0)[0]), model(batch(0)[0]))
