import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.strategies import sensitivity
from prunewald.strategies.scan import LEVELS
from tests.resuming import same
from tests.strategies.helpers import trained

pytestmark = pytest.mark.usefixtures("one_thread")
CHOICES = {
    "magnitude": {"criterion": "magnitude"},
    "window": {"uncertainty": pw.PseudoBootstrap(last=10)},
    "global": {"uncertainty": pw.PseudoBootstrap(last=10), "scope": "global"},
    "wanda": {"criterion": "wanda"},
    "slices": {"criterion": "magnitude", "targets": ["0.weight[2]", "0.weight[5]", "3.weight"]},
}


def prepared(pruned, **choice):
    work = trained(**choice)
    if pruned:
        work.pruner.prune({"3.weight": 0.5})
        work.steps(12)
    return work


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("pruned", [False, True])
def test_it_is_pruning_one_layer_by_hand(choice, pruned):
    levels = (0.25, 0.5, 0.75)
    work = prepared(pruned, **CHOICES[choice])
    before = work.state()
    scan = sensitivity(work.pruner, work.accuracy, levels)
    assert same(work.state(), before), "the model, the optimizer and the Pruner are as they were"
    assert scan.levels == levels
    assert scan.dense == work.accuracy()
    assert list(scan.layers) == [part.name for part in work.pruner.slices]
    for name, values in scan.layers.items():
        for level, value in zip(levels, values, strict=True):
            one = prepared(pruned, **CHOICES[choice])
            if not (pruned and name == "3.weight" and level <= 0.5):
                one.pruner.prune({name: level})
            assert one.accuracy() == value, (name, level)
    assert len({v for values in scan.layers.values() for v in values}) > 4


def test_it_prints_as_a_table():
    work = trained(criterion="magnitude")
    lines = str(sensitivity(work.pruner, work.accuracy)).splitlines()
    assert lines[0] == f"dense {work.accuracy():.4f}"
    assert lines[1].split() == ["layer", "20.0%", "40.0%", "60.0%", "80.0%", "90.0%", "95.0%", "99.0%"]
    assert [line.split()[0] for line in lines[3:]] == ["0.weight", "3.weight"]
    assert len(LEVELS) == len(lines[3].split()) - 1
    assert sensitivity(work.pruner, work.accuracy)._repr_html_().count("<td") == 2 * (len(LEVELS) + 1)


@pytest.mark.parametrize("choice", CHOICES)
def test_an_error_in_the_evaluation_leaves_everything_as_it_was(choice):
    work, calls = trained(**CHOICES[choice]), iter(range(3))
    before = work.state()

    def evaluate():
        work.accuracy()
        return 1.0 if next(calls, None) is not None else 1 / 0

    with pytest.raises(ZeroDivisionError):
        sensitivity(work.pruner, evaluate)
    assert same(work.state(), before)


def test_bad_levels_are_refused():
    work = trained(criterion="magnitude")
    with pytest.raises(ValueError, match="0.9 to 0.5"):
        sensitivity(work.pruner, work.accuracy, (0.9, 0.5))
    pruner = pw.Pruner(work.model, criterion="magnitude", targets="3.weight", pattern=pw.KeepNOfM(2, 4))
    with pytest.raises(ValueError, match="beyond 0.5.*KeepNOfM"):
        sensitivity(pruner, work.accuracy)
    assert sensitivity(pruner, work.accuracy, (0.25, 0.5)).layers.keys() == {"3.weight"}


def test_batch_norms_stay_as_they_are_where_the_evaluation_is_one():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(32, 6)

    def evaluate():
        with torch.no_grad():
            return -model.eval()(x).square().mean()

    scan = sensitivity(pw.Pruner(model, criterion="magnitude"), evaluate, (0.5, 0.9))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert type(scan.dense) is type(scan.layers["0.weight"][0]) is float
