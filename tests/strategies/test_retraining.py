"""What changes for the retraining: the learning rate, and dropout."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR

import prunewald as pw
from tests.strategies.helpers import LEVELS, trained

pytestmark = pytest.mark.usefixtures("one_thread")


def two_groups(params):
    first, *rest = params
    return torch.optim.SGD([{"params": [first], "lr": torch.tensor(0.2)}, {"params": rest, "lr": 0.1}], foreach=True)


@pytest.mark.parametrize("schedule", [False, True])
def test_the_share_of_the_learning_rate_does_not_compound(schedule):
    work, begun = trained(criterion="magnitude", optimizer=two_groups), []

    def train(one):
        # LambdaLR goes by the `initial_lr` that the first scheduler leaves behind.
        scheduler = LambdaLR(work.optimizer, lambda step: 0.5**step) if schedule else None
        begun.append([float(group["lr"]) for group in work.optimizer.param_groups])
        for _ in range(3):
            work.steps(1)
            if scheduler is not None:
                scheduler.step()

    pw.strategies.iterative(work.pruner, LEVELS, train, lr=0.1)
    assert begun == [pytest.approx([0.02, 0.01])] * 3
    pw.strategies.iterative(work.pruner, (0.9,), train, lr=1.0)
    assert begun[-1] == pytest.approx([0.02, 0.01])


@pytest.mark.parametrize("scheduler", [CosineAnnealingLR, LinearLR])
def test_the_share_is_of_the_rate_before_a_scheduler_changed_it(scheduler):
    work, begun = trained(criterion="magnitude"), []
    decay = scheduler(work.optimizer, total_iters=6, end_factor=0.0) if scheduler is LinearLR else None
    decay = decay or scheduler(work.optimizer, 6)
    for _ in range(6):
        work.steps(1)
        decay.step()
    assert work.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    pw.strategies.iterative(work.pruner, LEVELS, lambda one: begun.append(work.optimizer.param_groups[0]["lr"]), lr=0.1)
    assert begun == [pytest.approx(0.01)] * 3


def test_a_share_of_nothing_is_refused():
    work = trained(criterion="magnitude")
    work.optimizer.param_groups[0]["lr"] = 0.0
    with pytest.raises(ValueError, match="lr=0.1 is a share of the optimizer's learning rate, and that is 0"):
        pw.strategies.iterative(work.pruner, LEVELS, work.train, lr=0.1)
    assert not work.trained
    assert not work.pruner.sparsity


def test_a_group_that_does_not_learn_stays_so():
    work, begun = trained(criterion="magnitude", optimizer=two_groups), []
    work.optimizer.param_groups[1]["lr"] = 0.0
    pw.strategies.iterative(work.pruner, (0.5,), lambda one: begun.extend(g["lr"] for g in work.optimizer.param_groups), lr=0.1)
    assert begun == [pytest.approx(0.02), 0]


def test_the_learning_rate_goes_on_from_the_folder(tmp_path):
    work, begun = trained(criterion="magnitude"), []

    def train(one):
        begun.append(work.optimizer.param_groups[0]["lr"])
        if one.index == 2 and len(begun) == 2:
            raise KeyboardInterrupt
        work.optimizer.param_groups[0]["lr"] = 123.0

    with pytest.raises(KeyboardInterrupt):
        pw.strategies.iterative(work.pruner, LEVELS, train, lr=0.1, folder=tmp_path)
    pw.strategies.iterative(work.pruner, LEVELS, train, lr=0.1, folder=tmp_path)
    assert begun == [pytest.approx(0.01)] * 4


def test_dropout_follows_the_formula():
    """D_r = D_o sqrt(C_ir / C_io), C_i the connections into the layer whose outputs are dropped."""
    work, rates = trained(criterion="magnitude", scope="global"), []

    def train(one):
        row = one.report.rows[0]
        assert row.name == "0.weight"
        assert work.model[2].p == pytest.approx(0.2 * math.sqrt(row.kept / 48))
        rates.append(work.model[2].p)

    pw.strategies.iterative(work.pruner, (0.3, 0.6), train, dropout=True)
    pw.strategies.iterative(work.pruner, (0.8,), train, dropout=True)  # goes on, and does not compound
    assert 0.2 > rates[0] > rates[1] > rates[2]


def test_dropout_goes_on_from_the_folder_in_the_same_process(tmp_path):
    work, rates = trained(criterion="magnitude"), []

    def train(one):
        rates.append((one.sparsity, work.model[2].p))
        if len(rates) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pw.strategies.iterative(work.pruner, (0.25, 0.5, 0.75), train, dropout=True, folder=tmp_path)
    pw.strategies.iterative(work.pruner, (0.25, 0.5, 0.75), train, dropout=True, folder=tmp_path)
    assert [(level, pytest.approx(0.2 * math.sqrt(1 - level))) for level in (0.25, 0.5, 0.5, 0.75)] == rates


def test_dropout_of_a_model_that_was_pruned_before_goes_on_from_the_folder(tmp_path):
    work, fresh = (trained(criterion="magnitude") for _ in range(2))
    work.pruner.prune(0.5)  # and 0.2 is the rate for all weights

    def train(one):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pw.strategies.iterative(work.pruner, (0.75,), train, dropout=True, folder=tmp_path)
    pw.strategies.iterative(fresh.pruner, (0.75,), fresh.train, dropout=True, folder=tmp_path)
    assert fresh.model[2].p == work.model[2].p == pytest.approx(0.2 * math.sqrt(0.25))


class Late(nn.Module):
    """Holds its dropout after all layers, as many models do."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(4, 10), nn.Linear(10, 2), nn.Dropout(0.5)


def test_dropout_may_be_told_its_layer():
    model = Late()
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune({"outer": 0.5})
    for _ in pw.rounds(pruner, (0.75,), dropout={"drop": "inner"}):
        assert model.drop.p == pytest.approx(0.5 * math.sqrt(0.25))
    for wrong in ({"drop": "inner.bias"}, {"dropped": "inner"}, {"outer": "inner"}):
        with pytest.raises(ValueError, match=r"of \['drop'\], and the layer before it, of \['inner', 'outer'\]"):
            pw.rounds(pruner, (0.9,), dropout=wrong)


def test_a_rate_that_was_set_since_is_the_rate_for_all_weights():
    work = trained(criterion="magnitude")
    pw.strategies.iterative(work.pruner, (0.5,), work.train, dropout=True)
    work.model[2].p = 0.4
    pw.strategies.iterative(work.pruner, (0.75,), work.train, dropout=True)
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
    for _ in pw.rounds(pw.Pruner(model, criterion="magnitude", **options), (0.5,), dropout=True):
        assert [module.p for module in dropouts] == pytest.approx(rates)
