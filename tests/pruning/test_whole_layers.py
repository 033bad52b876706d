"""A module counted as one layer: one count, one order, one std for lambda, over all its targets."""

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.model.slices import Slice, layer_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """A recurrent module of two layers, and a linear one with its bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.fc = nn.LSTM(5, 6, num_layers=2), nn.Linear(6, 10)

    def forward(self, x):
        return self.fc(self.lstm(x)[0])


TARGETS = ["lstm", "fc", "fc.bias"]
LAYERS = {
    "lstm_l0": ["lstm.weight_ih_l0", "lstm.weight_hh_l0"],
    "lstm_l1": ["lstm.weight_ih_l1", "lstm.weight_hh_l1"],
    "fc": ["fc.weight", "fc.bias"],
}


def flat(tensors, names):
    return torch.cat([tensors[name].detach().flatten() for name in names])


def sigmas(model):
    return {name: torch.rand_like(p) + 0.01 for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("param", "index", "layer"),
    [
        ("fc.weight", None, "fc"),
        ("fc.bias", slice(0, 2), "fc"),
        ("lstm.weight_hh_l1_reverse", None, "lstm_l1_reverse"),
        ("lstm.bias_ih_l1_reverse", None, "lstm_l1_reverse"),
        ("lstm.weight_hr_l0", None, "lstm_l0"),
        ("cell.weight_ih", None, "cell"),
        ("attention.in_proj_weight", None, "attention"),
        ("a.fc.parametrizations.weight.original", None, "a.fc"),
        ("experts.down_proj", 3, "experts[3]"),
        ("weight", None, ""),
    ],
)
def test_the_layer_of_a_tensor(param, index, layer):
    assert layer_of(Slice("any", param, index)) == layer


def test_a_module_has_one_count_one_order_and_one_std():
    model = Net()
    with torch.no_grad():
        model.lstm.weight_hh_l0 *= 3
        model.fc.bias /= 100
    sigma, before = sigmas(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner = pw.Pruner(
        model, criterion=pw.MagnitudeUncertainty(0.5), uncertainty=sigma, scope="module", targets=TARGETS
    )
    with pytest.warns(UserWarning, match="fc.bias"):
        pruner.prune(0.7)
    for names in LAYERS.values():
        weight = flat(before, names)
        tau = pw.tau(weight, flat(sigma, names), 0.5 * float(weight.double().std()))
        kept = flat(pruner.masks, names)
        assert int(kept.sum()) == len(kept) - round(0.7 * len(kept))
        assert tau[kept].min() > tau[~kept].max()


def test_the_std_of_a_second_round_is_that_of_the_survivors():
    model = Net()
    sigma = sigmas(model)
    pruner = pw.Pruner(
        model, criterion=pw.MagnitudeUncertainty(0.5), uncertainty=sigma, scope="module", targets=TARGETS
    )
    pruner.prune(0.5)
    for names in LAYERS.values():
        weight, kept = flat(dict(model.named_parameters()), names), flat(pruner.masks, names)
        tau = pw.tau(weight, flat(sigma, names), 0.5 * float(weight[kept].double().std()))
        torch.testing.assert_close(flat(pruner.scores(), names)[kept], tau[kept])


def test_a_dict_by_layer_takes_all_targets_of_the_module():
    model = Net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    pruner = pw.Pruner(model, criterion="abs", scope="module", targets=TARGETS)
    pruner.prune({"fc": 0.5, "lstm.weight_ih_l0": 0.25, "lstm.weight_hh_l0": 0.75})
    weight, kept = flat(before, LAYERS["fc"]).abs(), flat(pruner.masks, LAYERS["fc"])
    assert int(kept.sum()) == 35
    assert weight[kept].min() > weight[~kept].max()
    # Tensors of one layer that are given different shares are counted by themselves.
    assert [int(pruner.masks[name].sum()) for name in LAYERS["lstm_l0"]] == [90, 36]
    assert all(pruner.masks[name].all() for name in LAYERS["lstm_l1"])


def test_a_scale_free_sigma_has_one_scale_in_a_module():
    """The second moment is known up to a factor: two of them would make the order within a module mean nothing."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 5)).square().mean().backward()
        optimizer.step()
    pruner = pw.Pruner(model, optimizer, criterion=pw.MagnitudeUncertainty(0.0), scope="module", targets=TARGETS)
    scores, state = pruner.scores(), optimizer.state
    ratios = {}
    for name, param in pruner._params.items():
        wald = param.detach().abs() * state[param]["exp_avg_sq"].sqrt()
        ratios[name] = (scores[name] / wald).nanmedian()
    for names in LAYERS.values():
        torch.testing.assert_close(ratios[names[0]], ratios[names[1]])
    assert ratios["fc.weight"] != ratios["lstm.weight_ih_l0"]


def test_a_false_discovery_rate_is_that_of_the_module():
    model = Net()
    sigma = {name: 0.1 * value for name, value in sigmas(model).items()}
    pruner = pw.Pruner(model, uncertainty=sigma, scope="module", targets=TARGETS)
    weight = flat(dict(model.named_parameters()), LAYERS["fc"])
    z = weight.abs() / flat(sigma, LAYERS["fc"])
    pruner.prune(fdr=0.1)
    kept = flat(pruner.masks, LAYERS["fc"])
    expected = pw.statistics.discoveries(pw.statistics.p_value(z), 0.1)
    assert torch.equal(kept, expected)
    assert 0 < int(kept.sum()) < len(kept)
