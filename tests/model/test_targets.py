import re

import pytest
import torch
from torch import nn

from prunewald.model.targets import find_slices


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.conv = nn.Conv1d(8, 8, 3)
        self.norm = nn.LayerNorm((8, 8))  # its weight has two dimensions
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.lstm = nn.LSTM(8, 6, bidirectional=True)
        self.gru = nn.GRU(8, 6)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        self.token = nn.Parameter(torch.zeros(3))
        self.table = nn.Parameter(torch.zeros(4, 4), requires_grad=False)


def names(targets=None, ignore=None, model=None):
    return [part.name for part in find_slices(model or Net(), targets, ignore)]


def test_by_default_the_weights_of_layers_and_what_is_left_out_is_listed():
    assert find_slices(Net(), None, None).left_out == ["table", "embed.weight", "norm.weight"]
    assert find_slices(Net(), "conv", None).left_out == ()
    assert names("table") == ["table"]
    assert names() == [
        "conv.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "lstm.weight_ih_l0_reverse",
        "lstm.weight_hh_l0_reverse",
        "gru.weight_ih_l0",
        "gru.weight_hh_l0",
        "block.0.weight",
        "block.2.weight",
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("conv", ["conv.weight"]),
        ("conv.weight", ["conv.weight"]),
        ("block", ["block.0.weight", "block.2.weight"]),
        ("block.*", ["block.0.weight", "block.2.weight"]),
        ("block.?.bias", ["block.0.bias", "block.1.bias", "block.2.bias"]),
        ("b*", ["block.0.weight", "block.2.weight"]),
        ("conv.bias", ["conv.bias"]),
        ("token", ["token"]),
        ("*.weight_hh*", ["lstm.weight_hh_l0", "lstm.weight_hh_l0_reverse", "gru.weight_hh_l0"]),
        (nn.Linear, ["attention.out_proj.weight", "block.0.weight", "block.2.weight"]),
        (nn.Embedding, ["embed.weight"]),
        (nn.BatchNorm1d, ["block.1.weight"]),
        ("norm", ["norm.weight"]),
        ("embed*", ["embed.weight"]),
        ("norm.w*", ["norm.weight"]),
        ("blo*.1.weight", ["block.1.weight"]),
        ("block.[02]", ["block.0.weight", "block.2.weight"]),
        ([nn.Conv1d, "gru.weight_ih_l0"], ["conv.weight", "gru.weight_ih_l0"]),
        ((nn.Conv1d, "gru"), ["conv.weight", "gru.weight_ih_l0", "gru.weight_hh_l0"]),
        (("conv", nn.GRU), ["conv.weight", "gru.weight_ih_l0", "gru.weight_hh_l0"]),
    ],
)
def test_what_a_target_means(target, expected):
    assert names(target) == expected


@pytest.mark.parametrize("everything", ["*", "*.weight*", "*weight*"])
def test_a_wildcard_alone_reaches_no_norm_embedding_or_bias(everything):
    assert not {"embed.weight", "norm.weight", "block.1.weight", "conv.bias", "token"} & set(names(everything))
    assert {"conv.weight", "gru.weight_ih_l0", "block.0.weight"} <= set(names(everything))


def test_modules_and_parameters_themselves():
    model = Net()
    assert names(model.block, model=model) == ["block.0.weight", "block.2.weight"]
    assert names([model.conv.bias, model.gru], model=model) == ["conv.bias", "gru.weight_ih_l0", "gru.weight_hh_l0"]


def test_ignore_takes_away():
    kept = names(ignore=["lstm", nn.Linear, "attention"])
    assert kept == ["conv.weight", "gru.weight_ih_l0", "gru.weight_hh_l0"]


@pytest.mark.parametrize(
    ("target", "name", "count"),
    [
        ("conv.weight[2]", "conv.weight[2]", 24),
        ("conv.weight[:, 1:3]", "conv.weight[:, 1:3]", 48),
        ("conv.weight[-1, 0]", "conv.weight[-1, 0]", 3),
        (("conv.weight", 2), "conv.weight[2]", 24),
        (("conv.weight", (slice(None), slice(0, 8, 2))), "conv.weight[:, 0:8:2]", 96),
        (("block.0.weight", torch.eye(8) > 0), "block.0.weight[8 places]", 8),
    ],
)
def test_slices(target, name, count):
    model = Net()
    (part,) = find_slices(model, target, None)
    assert part.name == name
    assert part.take(model.get_parameter(part.param)).numel() == count
    copy = torch.zeros_like(model.get_parameter(part.param))
    part.put_(copy, torch.ones_like(part.take(copy)))
    assert int(copy.sum()) == count


def test_several_slices_of_one_tensor():
    assert names(["conv.weight[0]", "conv.weight[1]"]) == ["conv.weight[0]", "conv.weight[1]"]


def test_an_ignored_slice_leaves_the_rest():
    model = Net()
    (part,) = find_slices(model, "block.0", ["block.0.weight[0]", "block.0.weight[:, 0]"])
    inside = part.take(torch.arange(64.0).reshape(8, 8))
    assert inside.tolist() == torch.arange(64.0).reshape(8, 8)[1:, 1:].reshape(-1).tolist()


def tied() -> nn.Module:
    model = nn.Module()
    model.embed, model.a, model.b, model.head = nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    model.b.weight, model.head.weight = model.a.weight, model.embed.weight
    return model


def test_tied_tensors_count_once_and_an_embedding_stays_one():
    assert names(model=tied()) == ["a.weight"]
    assert names(["a", "b"], model=tied()) == ["a.weight"]
    assert names("b.weight", model=tied()) == ["a.weight"]
    assert names("head", model=tied()) == ["embed.weight"]
    assert names(ignore="b", targets=["a", "head"], model=tied()) == ["embed.weight"]


@pytest.mark.parametrize("role", ["targets", "ignore"])
@pytest.mark.parametrize("wrong", ["convolution", "fc*", nn.Conv2d, "conv.weight.data"])
def test_a_pattern_that_matches_nothing_is_named(role, wrong):
    with pytest.raises(ValueError, match=rf"{re.escape(repr(wrong))}.* Net.* token, table"):
        names(**{role: [wrong]})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (("conv.wait", 0), "'conv.wait'.* token, table"),
        ("conv.weight[9]", r"'conv.weight\[9\]'.*'conv.weight'.*\(8, 8, 3\)"),
        ("conv.weight[5:5]", r"'conv.weight\[5:5\]'.*no weights"),
        (["conv", "conv.weight[1]"], r"'conv.weight\[1\]' overlaps"),
        (["conv.weight[1]", "conv.weight[:, 2]"], r"'conv.weight\[:, 2\]' overlaps"),
    ],
)
def test_bad_slices_are_named(target, message):
    with pytest.raises(ValueError, match=message):
        names(target)


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match="targets='conv' and ignore='conv'"):
        names(targets="conv", ignore="conv")


def test_a_lazy_layer_has_no_shape_yet():
    with pytest.raises(ValueError, match="'0.weight'.*run one batch"):
        names(model=nn.Sequential(nn.LazyLinear(3)), targets="0.weight")
