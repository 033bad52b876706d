import copy
import math

import pytest
from torch import nn

import prunewald as pw
from prunewald.strategies import iterative
from tests.strategies.helpers import trained

pytestmark = pytest.mark.usefixtures("one_thread")


def test_dropout_follows_the_formula():
    """D_r = D_o sqrt(C_ir / C_io), C_i the connections into the layer whose outputs are dropped."""
    work, rates = trained(criterion="magnitude", scope="global"), []

    def train(one):
        row = one.report.rows[0]
        assert row.name == "0.weight"
        assert work.model[2].p == pytest.approx(0.2 * math.sqrt(row.kept / 48))
        rates.append(work.model[2].p)

    iterative(work.pruner, (0.3, 0.6), train, dropout=True)
    iterative(work.pruner, (0.8,), train, dropout=True)  # goes on, and does not compound
    assert 0.2 > rates[0] > rates[1] > rates[2]


def test_dropout_goes_on_from_the_folder_in_the_same_process(tmp_path):
    work, rates = trained(criterion="magnitude"), []

    def train(one):
        rates.append((one.sparsity, work.model[2].p))
        if len(rates) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        iterative(work.pruner, (0.25, 0.5, 0.75), train, dropout=True, folder=tmp_path)
    iterative(work.pruner, (0.25, 0.5, 0.75), train, dropout=True, folder=tmp_path)
    assert [(level, pytest.approx(0.2 * math.sqrt(1 - level))) for level in (0.25, 0.5, 0.5, 0.75)] == rates


def test_dropout_of_a_model_that_was_pruned_before_goes_on_from_the_folder(tmp_path):
    work, fresh = (trained(criterion="magnitude") for _ in range(2))
    work.pruner.prune(0.5)  # and 0.2 is the rate for all weights

    def train(one):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        iterative(work.pruner, (0.75,), train, dropout=True, folder=tmp_path)
    iterative(fresh.pruner, (0.75,), fresh.train, dropout=True, folder=tmp_path)
    assert fresh.model[2].p == work.model[2].p == pytest.approx(0.2 * math.sqrt(0.25))


class Late(nn.Module):
    """Holds its dropout after all layers, as many models do."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(4, 10), nn.Linear(10, 2), nn.Dropout(0.5)


def test_dropout_may_be_told_its_layer():
    model = Late()
    pruner = pw.Pruner(model, criterion="magnitude", scope="layer")
    pruner.prune({"outer": 0.5})
    (done,) = iterative(pruner, (0.75,), lambda one: model.drop.p, dropout={"drop": "inner"})
    assert done.result == pytest.approx(0.5 * math.sqrt(0.25))
    for wrong in ({"drop": "inner.bias"}, {"dropped": "inner"}, {"outer": "inner"}):
        with pytest.raises(ValueError, match=r"\['drop'\].*\['inner', 'outer'\]"):
            iterative(pruner, (0.9,), print, dropout=wrong)


def test_a_rate_that_was_set_since_is_the_rate_for_all_weights():
    work = trained(criterion="magnitude")
    iterative(work.pruner, (0.5,), work.train, dropout=True)
    work.model[2].p = 0.4
    iterative(work.pruner, (0.75,), work.train, dropout=True)
    assert work.model[2].p == pytest.approx(0.4 * math.sqrt(0.25))


class Tied(nn.Module):
    """Two names for one weight; the second one is what the dropout follows."""

    def __init__(self):
        super().__init__()
        self.first, self.other, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.drop = nn.Dropout(0.4)


HALVED = 0.4 * math.sqrt(0.5)


@pytest.mark.parametrize(
    ("layers", "options", "rates"),
    [
        ([nn.Dropout(0.4), nn.Linear(8, 8)], {}, [0.4]),  # drops the input, which no layer made
        ([nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8), nn.Dropout(0.4)], {"ignore": "0"}, [0.4, HALVED]),
        ([nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.4)], {"ignore": "1"}, [0.4]),
        ([nn.Linear(8, 8), nn.Embedding(8, 8), nn.Dropout(0.4)], {}, [0.4]),
        ([nn.Linear(8, 8), nn.BatchNorm1d(8), nn.PReLU(8), nn.Dropout(0.4)], {}, [HALVED]),
        ([nn.Linear(8, 8), nn.LayerNorm((8, 8)), nn.Dropout(0.4)], {}, [HALVED]),
        ([nn.LSTM(8, 8), nn.Dropout(0.4)], {"targets": "0.weight_ih_l0"}, [0.4 * math.sqrt(0.75)]),
        ([nn.Linear(8, 8), nn.Dropout(0.4)], {"targets": "0.weight[:4]"}, [0.4 * math.sqrt(0.75)]),
        ([Tied()], {"ignore": "0.other"}, [HALVED]),
    ],
)
def test_dropout_goes_by_the_layer_before_it_target_or_not(layers, options, rates):
    model = nn.Sequential(*copy.deepcopy(layers))
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    seen = []

    def train(one):
        seen.extend(module.p for module in dropouts)

    iterative(pw.Pruner(model, criterion="magnitude", scope="layer", **options), (0.5,), train, dropout=True)
    assert seen == pytest.approx(rates)
