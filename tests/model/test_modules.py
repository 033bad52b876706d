import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from prunewald.model.modules import averaged, evaluating, plain, plain_names
from prunewald.uncertainty.diagnosis import Sigmas


def test_plain_looks_inside_what_torch_compile_returns():
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    assert "weight" not in dict(compiled.named_parameters())
    assert plain(compiled) is model
    assert plain(model) is model


def test_plain_looks_inside_data_parallel_and_compiled_ones_in_any_order():
    model = nn.Linear(2, 2)
    assert plain(nn.DataParallel(model)) is model
    assert plain(torch.compile(nn.DataParallel(torch.compile(model, backend="eager")), backend="eager")) is model
    assert averaged(AveragedModel(nn.DataParallel(model))).weight.shape == (2, 2)


def test_plain_is_a_view_where_single_layers_are_wrapped():
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(nn.Linear(2, 2), torch.compile(inner, backend="eager"), nn.DataParallel(nn.Linear(2, 2)))
    view = plain(model)
    assert type(view) is nn.Sequential
    assert list(dict(view.named_parameters())) == [
        f"{at}.{leaf}" for at in ("0", "1.0", "2") for leaf in ("weight", "bias")
    ]
    assert all(a is b for a, b in zip(view.parameters(), model.parameters(), strict=True))
    assert view[1] is inner, "what needs no view is itself"
    assert list(model.state_dict())[2] == "1._orig_mod.0.weight", "the model is as it was"
    seen = []
    view.register_forward_hook(lambda *_: seen.append(1))
    x = torch.ones(1, 2)
    with torch.no_grad():
        torch.testing.assert_close(model(x), view(x))
    assert seen == [1, 1], "hooks are shared"


def test_a_layer_that_is_in_a_model_twice_is_so_in_its_view():
    layer = torch.compile(nn.Linear(2, 2), backend="eager")
    view = plain(nn.Sequential(layer, nn.Sequential(layer)))
    assert view[0] is view[1][0]


@pytest.mark.parametrize("given", [0.9, "model"])
def test_what_is_no_module_is_repeated(given):
    with pytest.raises(TypeError, match=f"model={given!r}.*torch.nn.Module"):
        plain(given)


def test_a_module_that_only_has_a_module_inside_stays():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = Model()
    assert plain(model) is model


def test_averaged_looks_inside_an_averaged_model_and_a_compiled_one():
    model = nn.Linear(2, 2)
    average = AveragedModel(model)
    assert averaged(average) is average.module
    assert averaged(AveragedModel(torch.compile(model, backend="eager"))).weight.shape == (2, 2)
    assert averaged(torch.compile(model, backend="eager")) is model
    assert averaged(model) is model


def test_evaluating_gives_every_module_its_own_mode_back():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before == [True, True, True, False, True]


def test_evaluating_ends_with_an_error_too():
    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), evaluating(model):
        raise ZeroDivisionError
    assert model.training


def test_names_from_a_wrapped_model_are_found_in_the_plain_one():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    wrapped = nn.DataParallel(model)
    given = Sigmas({f"module.{name}": param for name, param in model.named_parameters()} | {"other": torch.ones(1)})
    given.caveat = "kept"
    found = plain_names(wrapped, given)
    assert list(found) == ["0.weight", "0.bias", "1.weight", "1.bias", "other"]
    assert isinstance(found, Sigmas)
    assert found.caveat == "kept"
    assert "module.0.weight" in given
    assert plain_names(model, found) is found
