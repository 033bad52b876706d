"""What is a weight by default: by the table, by names, and what no rule takes."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from prunewald.model import layouts
from prunewald.model.layouts import Layout, register_layout, survey
from prunewald.model.targets import find_slices


@pytest.fixture(autouse=True)
def _table(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(layouts, "_TABLE", list(layouts._TABLE))


def holding(cls: str = "Net", **shapes: tuple[int, ...]) -> nn.Module:
    """A module of a class so named, whose parameters have these shapes."""
    module: nn.Module = type(cls, (nn.Module,), {})()
    for name, shape in shapes.items():
        module.register_parameter(name, nn.Parameter(torch.ones(shape)))
    return module


def weights(module: nn.Module) -> dict[str, Layout]:
    return survey(module).weights


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(3, 1), ["weight"]),
        (nn.Conv2d(3, 4, 1, groups=1), ["weight"]),
        (nn.Conv3d(2, 4, 3, groups=2), ["weight"]),
        (nn.Bilinear(2, 3, 4), ["weight"]),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), ["in_proj_weight", "out_proj.weight"]),
        (nn.MultiheadAttention(4, 2, kdim=3, vdim=5), [*(f"{x}_proj_weight" for x in "qkv"), "out_proj.weight"]),
        (nn.LSTM(3, 4, proj_size=2), ["weight_ih_l0", "weight_hh_l0", "weight_hr_l0"]),
        (nn.GRUCell(3, 4), ["weight_ih", "weight_hh"]),
        (holding("NormedLinear", weight=(3, 4)), ["weight"]),
        (nn.LayerNorm((3, 4)), []),
        (nn.EmbeddingBag(3, 4), []),
        (holding("LlamaRMSNorm", weight=(3, 4)), []),
        (holding("PositionEmbedding", weight=(3, 4)), []),
    ],
    ids=str,
)
def test_layers(module, expected):
    assert list(weights(module)) == expected


@pytest.mark.parametrize("name", ["weight", "kernel", "w", "w1", "W", "W_Q", "Wq", "q_proj", "proj", "dw_weight"])
def test_names_that_say_weight(name):
    assert weights(holding(**{name: (3, 4)})) == {name: Layout()}
    assert weights(holding(**{name: (3, 1, 1)})) == {}, "one dimension above 1"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layer_scale", (8, 1, 1)),
        ("logit_scale", (4, 1, 1)),
        ("cls_token", (1, 1, 8)),
        ("pos_embed", (1, 5, 8)),
        ("position_weights", (5, 8)),
        ("temperature", (4, 4)),
        ("relative_position_bias_table", (9, 4)),
        ("in_proj_bias", (2, 4)),
        ("window", (3, 4)),
        ("own", (3, 4)),
    ],
)
def test_what_is_no_weight_is_listed(name, shape):
    found = survey(holding(**{name: shape}))
    assert (found.weights, found.others) == ({}, [name])


def test_a_list_of_parameters_is_known_by_its_own_name():
    model = nn.Module()
    model.weights = nn.ParameterList([torch.ones(2, 3)])
    model.things = nn.ParameterDict({"w_in": torch.ones(2, 3), "other": torch.ones(2, 3)})
    assert list(weights(model)) == ["weights.0", "things.w_in"]


def test_a_tied_weight_is_none_where_one_place_says_so():
    model = nn.Sequential(nn.Linear(4, 4), nn.Embedding(4, 4))
    model[1].weight = model[0].weight
    assert survey(model).weights == {}


# ---- the table -----------------------------------------------------------------------------------------------------


def test_entries_of_a_users_own_come_first():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3, 4))

    assert weights(Odd()) == {}
    register_layout(Odd, "table", Layout(transposed=True))
    assert weights(Odd()) == {"table": Layout(transposed=True)}
    register_layout("Od*", "tab*", None, dims=2)
    assert weights(Odd()) == {}
    register_layout(nn.Linear, "weight", None)
    assert weights(nn.Linear(2, 2)) == {}


@pytest.mark.parametrize(("given", "message"), [((3,), "kind=3"), ((nn.Linear, "weight", 1), "layout=1.*Layout")])
def test_what_is_no_entry_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        register_layout(*given)


# ---- weights made from others --------------------------------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def doubled(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize(
    ("make", "name", "remedy"),
    [
        (parametrizations.weight_norm, "parametrizations.weight.original1", "remove_parametrizations"),
        (parametrizations.spectral_norm, "parametrizations.weight.original", "remove_parametrizations"),
        (parametrizations.orthogonal, "parametrizations.weight.original", "remove_parametrizations"),
        (doubled, "parametrizations.weight.original", "Doubled.*remove_parametrizations"),
        (weight_norm, "weight_v", "remove_weight_norm"),
        (spectral_norm, "weight_orig", "remove_spectral_norm"),
        (lambda m: prune.l1_unstructured(m, "weight", 0.5), "weight_orig", "prune.remove"),
    ],
)
def test_what_a_weight_is_made_from_is_refused_with_the_remedy(make, name, remedy):
    model = nn.Sequential(nn.Linear(4, 4), make(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=rf"'1.{name}'.*{remedy}.*model\[1\].*first, or .*ignore='1.{name}'"):
        find_slices(model, None, None)
    with pytest.raises(ValueError, match=remedy):
        find_slices(model, f"1.{name}", None)
    assert [part.name for part in find_slices(model, None, f"1.{name}")] == ["0.weight"]
    assert [part.name for part in find_slices(model, None, "1")] == ["0.weight"]


def test_after_the_remedy_it_is_a_weight_again():
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    parametrize.remove_parametrizations(layer, "weight")
    assert list(weights(layer)) == ["weight"]
