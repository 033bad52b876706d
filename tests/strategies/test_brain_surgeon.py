"""Optimal Brain Surgeon against restricted least squares, where it is exact, and against the Wald test."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.strategies import brain_surgeon, optimal_brain_surgeon
from prunewald.uncertainty import InverseFisher

pytestmark = pytest.mark.usefixtures("one_thread")

N, P = 80, 7


def regression(outputs=1, seed=0):
    """A linear model at its least squares estimate, with correlated inputs; and its data."""
    torch.manual_seed(seed)
    x = torch.randn(N, P, dtype=torch.float64) @ torch.randn(P, P, dtype=torch.float64)
    y = x @ torch.randn(P, outputs, dtype=torch.float64) + 3 * torch.randn(N, outputs, dtype=torch.float64)
    model = nn.Linear(P, outputs).double()
    best = restricted(x, y, range(P))
    model.weight.data, model.bias.data = best[:P].T.contiguous(), best[P]
    return model, [(x, y)]


def restricted(x, y, kept):
    """The least squares estimate with an intercept where only some inputs may have a weight; zeros elsewhere."""
    kept = list(kept)
    full = torch.zeros(P + 1, y.shape[1], dtype=torch.float64)
    full[[*kept, P]] = torch.linalg.lstsq(torch.cat([x[:, kept], torch.ones(N, 1, dtype=x.dtype)], 1), y).solution
    return full


def loss_of(x, y, kept):
    best = restricted(x, y, kept)
    return float((x @ best[:P] + best[P] - y).square().sum())


@pytest.mark.parametrize("seed", range(3))
def test_what_stays_is_the_restricted_estimate_and_what_goes_is_the_cheapest(seed):
    model, data = regression(seed=seed)
    pruner = pw.Pruner(model, criterion="abs")
    x, y = data[0]
    kept = set(range(P))
    for gone in range(1, P):
        kept = set(max(combinations(kept, P - gone), key=lambda some: -loss_of(x, y, some)))
        report = optimal_brain_surgeon(pruner, data, F.mse_loss, gone / P, damping=0)
        assert set(pruner.masks["weight"][0].nonzero().flatten().tolist()) == kept
        best = restricted(x, y, kept)
        torch.testing.assert_close(model.weight.detach()[0], best[:P, 0], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(model.bias.detach(), best[P], rtol=1e-8, atol=1e-10)
        assert report is pruner.report
        assert report.kept == P - gone


def test_in_one_call_it_is_the_same_as_one_by_one():
    results = []
    for steps in ((4,), (1, 2, 3, 4)):
        model, data = regression()
        pruner = pw.Pruner(model, criterion="abs")
        for gone in steps:
            optimal_brain_surgeon(pruner, data, "squared_error", gone / P, damping=0)
        results.append(model.weight.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


def test_the_first_that_goes_is_the_wald_tests():
    model, data = regression()
    surest = int((model.weight / InverseFisher().estimate(model, data, F.mse_loss)["weight"]).abs().argmax())
    data[0][0][:, surest] *= 1000  # in other units, the smallest weight is the surest
    model.weight.data[:, surest] /= 1000
    sigma = InverseFisher().estimate(model, data, F.mse_loss)
    with pw.Pruner(model, criterion=pw.MagnitudeUncertainty(0.0), uncertainty=sigma) as wald:
        expected, _ = wald.choose(1 / P)
    pruner = pw.Pruner(model, criterion="abs")
    by_size, _ = pruner.choose(1 / P)
    optimal_brain_surgeon(pruner, data, F.mse_loss, 1 / P, damping=0)
    assert torch.equal(pruner.masks["weight"], expected["weight"])
    assert not torch.equal(by_size["weight"], expected["weight"])


def trained(outputs=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, outputs))
    x = torch.randn(400, 6)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, optimizer, [(x[:200], y[:200]), (x[200:], y[200:])]


def error(model, data):
    with torch.no_grad():
        return sum(float(F.cross_entropy(model(x), y, reduction="sum")) for x, y in data)


def test_it_loses_less_than_magnitude_and_wald_without_the_update():
    losses = {}
    for name in ("abs", "wald", "obs"):
        model, optimizer, data = trained()
        if name == "obs":
            pruner = pw.Pruner(model, optimizer, criterion="abs")
            for level in (0.1, 0.2, 0.3, 0.4, 0.5):
                optimal_brain_surgeon(pruner, data, F.cross_entropy, level)
        else:
            sigma = InverseFisher(inverse="damped").estimate(model, data, F.cross_entropy) if name == "wald" else None
            pruner = pw.Pruner(model, criterion=name, uncertainty=sigma)
            pruner.prune(0.5)
        losses[name] = error(model, data)
    assert losses["obs"] < min(losses["abs"], losses["wald"])


@pytest.mark.parametrize("scope", ["layer", "global", "lamp", "module"])
def test_the_scope_says_how_many_and_the_zeros_are_held(scope):
    model, optimizer, data = trained()
    pruner = pw.Pruner(model, optimizer, criterion="abs", scope=scope, targets=["0", "2", "2.bias"])
    counts = [row.kept for row in pruner.choose(0.6)[1].rows]
    report = optimal_brain_surgeon(pruner, data, F.cross_entropy, 0.6)
    if scope in ("layer", "lamp"):
        assert [row.kept for row in report.rows] == counts
    elif scope == "module":
        assert [report.rows[0].kept, report.rows[1].kept + report.rows[2].kept] == [counts[0], sum(counts[1:])]
    assert report.kept == sum(counts)
    assert "OptimalBrainSurgeon()" in str(report)
    assert all(0 <= row.overlap <= 1 for row in report.rows)
    masks = pruner.masks
    for batch in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(data[batch % 2][0]), data[batch % 2][1]).backward()
        optimizer.step()
    for name, mask in masks.items():
        assert (model.get_parameter(name)[~mask] == 0).all()
        assert (model.get_parameter(name)[mask] != 0).all()


def test_a_dict_by_layer_and_what_no_gradient_reaches():
    model, _, data = trained()
    data = [(x * torch.tensor([1.0, 1, 1, 1, 0, 0]), y) for x, y in data]  # two inputs tell nothing
    before = model[0].weight.detach().clone()
    pruner = pw.Pruner(model, criterion="abs")
    optimal_brain_surgeon(pruner, data, F.cross_entropy, {"0": 18 / 72})
    kept, dead = pruner.masks["0.weight"], before[:, 4:].abs()
    assert kept[:, :4].all()
    assert set(dead[kept[:, 4:]].tolist()) == set(dead.flatten().sort().values[18:].tolist())
    assert pruner.masks["2.weight"].all()
    # Nothing was gained or lost, and the others stayed where they were.
    torch.testing.assert_close(model[0].weight[:, :4], before[:, :4])


@pytest.mark.parametrize("scope", [None, "layer", "global", "lamp", "module"])
@pytest.mark.parametrize("shares", [{"0": 0.5}, {"0.weight": 0.5, "0.bias": 0.25}, {"2": 0.5, "0.bias": 0.5}])
def test_in_a_dict_each_has_its_own_count_and_the_others_stay(scope, shares):
    model, _, data = trained()
    pruner = pw.Pruner(model, criterion="abs", scope=scope, targets=["0", "0.bias", "2"])
    expected = pruner.choose(shares)[1]
    report = optimal_brain_surgeon(pruner, data, F.cross_entropy, shares)
    assert [row.kept for row in report.rows] == [row.kept for row in expected.rows]
    assert report.kept < report.weights


@pytest.mark.parametrize(("sparsity", "scope"), [(0.5, "lamp"), ({"0": 0.5}, "layer")])
def test_the_report_names_the_scope_that_a_default_pruner_takes(sparsity, scope):
    model, _, data = trained()
    pruner = pw.Pruner(model)
    assert optimal_brain_surgeon(pruner, data, F.cross_entropy, sparsity).scope == scope


def test_slices():
    model, _, data = trained()
    pruner = pw.Pruner(model, criterion="abs", targets=["0.weight[:4]", "0.weight[8:]"])
    optimal_brain_surgeon(pruner, data, F.cross_entropy, 0.5)
    assert pruner.masks["0.weight"].sum(1).tolist()[4:8] == [6] * 4
    assert pruner.masks["0.weight"][:4].sum() == pruner.masks["0.weight"][8:].sum() == 12


def refused(match, model, data, damping=0.1, sparsity=0.5, **choice):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruner = pw.Pruner(model, **{"criterion": "abs", **choice})
    with pytest.raises(ValueError, match=match):
        optimal_brain_surgeon(pruner, data, F.cross_entropy, sparsity, damping=damping)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(mask.all() for mask in pruner.masks.values())


def test_what_cannot_be_is_said_and_leaves_the_model_alone(monkeypatch):
    model, _, data = trained()
    refused("singular.*damping=0.1", model, data, damping=0)
    refused("damping=-1", model, data, damping=-1)
    refused(r"Filter\([^)]*\): use", model, data, pattern="filter")
    refused("scope='row'", model, data, scope="row")
    refused("sparsity=1.5", model, data, sparsity=1.5)
    model[2].weight.requires_grad_(False)
    refused("'2.weight' does not require gradients", model, data)
    monkeypatch.setattr(brain_surgeon, "MOST", 50)
    refused("87 parameters.*up to 50.*FisherDiagonal", model, data)


def test_a_pruner_that_is_at_work_or_detached_is_refused():
    model, optimizer, data = trained()
    surgery = pw.Surgery(model, optimizer, sparsity=0.5, criterion="abs")
    with pytest.raises(ValueError, match="in the middle of a surgery"):
        optimal_brain_surgeon(surgery, data, F.cross_entropy, 0.5)
    surgery.detach()
    pruner = pw.Pruner(model, optimizer, criterion="abs")
    pruner.detach()
    before = model[0].weight.detach().clone()
    with pytest.raises(ValueError, match="detached"):
        optimal_brain_surgeon(pruner, data, F.cross_entropy, 0.5)
    assert torch.equal(model[0].weight, before)
