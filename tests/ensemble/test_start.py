"""Where replicas start: given weights, a given model, one start for all, masks."""

import pytest
import torch
from torch import nn

from prunewald.ensemble import SGD
from tests.ensemble.helpers import DROPPING_SEEDS, SEEDS, Net, close, dropping, dropping_net, many, plain, same

pytestmark = pytest.mark.usefixtures("one_thread")


def test_warm_starts_and_training_on():
    state = Net().state_dict()
    result = many(SGD(lr=0.1), start=state)
    on = many(SGD(lr=0.1), start=result)
    for r, seed in enumerate(SEEDS):
        once = plain(seed, SGD(lr=0.1), start=state)[0]
        twice = plain(seed, SGD(lr=0.1), start=once.state_dict())[0]
        for name, param in twice.named_parameters():
            close(on.params[name][r], param.detach())


def test_same_start():
    result = dropping(start="same", optimizer=SGD(lr=0.0))
    torch.manual_seed(DROPPING_SEEDS[0])
    assert all(torch.equal(p, result.params[n][r]) for n, p in dropping_net().named_parameters() for r in range(4))


def test_a_module_is_given():
    model = dropping_net()
    result = dropping(model, start="same", optimizer=SGD(lr=0.0))
    assert torch.equal(result.params["4.weight"][2], model[4].weight)
    whole = dropping(model)
    same(dropping(model, seeds=[7, 0]), whole.rows([3, 1]))
    assert not torch.equal(whole.params["4.weight"][0], whole.params["4.weight"][1])
    model[4] = nn.ParameterList([torch.zeros(1)])
    with pytest.raises(ValueError, match="ParameterList.*reset_parameters"):
        dropping(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "warm"}, "start='warm'.*'same'"),
        ({"start": {"4.weight": torch.zeros(6, 12)}}, "'0.bias'"),
        ({"masks": {"fc.weight": torch.ones(1, dtype=torch.bool)}}, "no parameter 'fc.weight'.*4.weight"),
        ({"masks": {"4.weight": torch.ones(2, 6, 12, dtype=torch.bool)}}, r"\(2, 6, 12\).*\(6, 12\), or \(4, 6, 12\)"),
        ({"masks": {"4.weight": torch.ones(6, 12)}}, "'4.weight' is torch.float32.*bool"),
    ],
)
def test_a_start_or_masks_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        dropping(**options)


def test_masks_are_a_dict():
    with pytest.raises(TypeError, match="list.*dict by parameter name"):
        dropping(masks=[torch.ones(6, 12) > 0])
