"""Pruning by significance: what a Wald test keeps at a level, or with a false discovery rate."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import prunewald as pw
from prunewald.core.ranking import KnownScores, Ranked
from prunewald.pruning.significance import z_thresholds

pytestmark = pytest.mark.usefixtures("one_thread")


def problem(seed=0):
    """A layer whose first column is far from zero, with honest standard errors."""
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 30, bias=False), nn.Linear(30, 30, bias=False))
    sigma = {}
    for name, p in model.named_parameters():
        sigma[name] = 0.1 + torch.rand(p.shape, generator=g)
        noise = torch.randn(p.shape, generator=g)
        noise[:, 0] += 8
        p.data = noise * sigma[name]
    return model, sigma


def test_alpha_keeps_what_is_significant():
    model, sigma = problem()
    p = {n: pw.wald_test(w.detach(), sigma[n]).p for n, w in model.named_parameters()}
    pruner = pw.Pruner(model, uncertainty=sigma)
    report = pruner.prune(alpha=0.05)
    assert all(torch.equal(mask, p[n] <= 0.05) for n, mask in pruner.masks.items())
    assert report.criterion == "Wald()"
    assert 0.85 < report.sparsity < 0.95


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_fdr_keeps_the_discoveries_of_benjamini_and_hochberg(scope):
    model, sigma = problem()
    p = {n: pw.wald_test(w.detach(), sigma[n]).p.double() for n, w in model.named_parameters()}
    pruner = pw.Pruner(model, uncertainty=sigma, scope=scope)
    pruner.prune(fdr=0.1)
    if scope == "layer":
        found = {n: stats.false_discovery_control(v.flatten().numpy()) <= 0.1 for n, v in p.items()}
    else:
        joined = stats.false_discovery_control(torch.cat([v.flatten() for v in p.values()]).numpy()) <= 0.1
        found = dict(zip(p, np.split(joined, [300]), strict=True))
    for name, mask in pruner.masks.items():
        assert np.array_equal(mask.flatten().numpy(), found[name])
        assert mask[:, 0].float().mean() > 0.9


def test_nothing_found_empties_a_layer_and_says_so():
    model, sigma = problem()
    sigma["0.weight"] *= 1000
    assert pw.Pruner(model, uncertainty=sigma).prune(fdr=0.01, dry_run=True).emptied == ["0.weight"]


def test_what_is_pruned_already_is_not_tested_again():
    z = torch.tensor([3.0, 2.5, 0.2, 0.1])
    pruned = torch.cat([z, torch.full((996,), -torch.inf)])  # a thousand tests would find nothing
    found = [
        z_thresholds(KnownScores({"a": Ranked(s, s)}), alpha=None, fdr=0.05, df=None, together=False)
        for s in (z, pruned, pruned.clamp(min=0))
    ]
    assert found == [{"a": 2.5}, {"a": 2.5}, {"a": math.inf}]


def test_the_honest_label():
    model, sigma = problem()
    optimizer = torch.optim.RMSprop(model.parameters())
    pseudo = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=5))
    for _ in range(100):  # from so many on it is known which weights are dead
        model(torch.randn(4, 10)).square().sum().backward()
        optimizer.step()
    first = str(pseudo.prune(alpha=0.05, dry_run=True)).splitlines()[0]
    assert first.startswith("not p-values: sigma from PseudoBootstrap is no standard error")
    for scale_free in (pw.Pruner(model, optimizer), pw.Pruner(model, optimizer, uncertainty="moment")):
        with pytest.raises(ValueError, match="SecondMoment.*without a unit.*likelihood="):
            scale_free.prune(fdr=0.1, dry_run=True)
    recipe = pw.SecondMoment(samples=100, batch_size=4, likelihood="cross_entropy")
    proper = pw.Pruner(model, optimizer, uncertainty=recipe).prune(fdr=0.1, dry_run=True)
    assert proper.notes[0].startswith("tested: standard errors at a minimum")
    assert "as good as the sigma that was given" in str(
        pw.Pruner(model, uncertainty=sigma).prune(fdr=0.1, dry_run=True)
    )


@pytest.mark.parametrize("request_", [{"alpha": 0.05}, {"fdr": 0.1}], ids=str)
def test_a_second_moment_in_the_units_of_an_unknown_loss_is_no_p_value_but_a_score(request_):
    model, _ = problem()
    optimizer = torch.optim.RMSprop(model.parameters())
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.SecondMoment(samples=100, batch_size=4))
    model(torch.randn(4, 10)).square().sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"SecondMoment\(samples=100, batch_size=4\).*give likelihood="):
        pruner.prune(**request_)
    assert pruner.prune(0.5).sparsity == 0.5


@pytest.mark.parametrize("request_", [{"alpha": 0.0}, {"alpha": 1}, {"fdr": 1.5}, {"fdr": True}, {"alpha": math.nan}])
def test_levels_out_of_range(request_):
    ((name, value),) = request_.items()
    model, sigma = problem()
    with pytest.raises(ValueError, match=f"{name}={value!r}: .*above 0 and below 1"):
        pw.Pruner(model, uncertainty=sigma).prune(**request_)


def test_a_change_of_units_of_one_input():
    """The paper's section IV-B: w = (10, 0.1), the second input in units a thousand times smaller."""
    w, se = torch.tensor([10.0, 0.1]), torch.tensor([2.0, 0.01])
    scale = torch.tensor([1.0, 1000.0])  # X2 divided by 1000: its weight and error grow a thousandfold

    def keeps(criterion, factor):
        model = nn.Linear(2, 1, bias=False)
        model.weight.data = (w * factor)[None]
        pruner = pw.Pruner(model, criterion=criterion, uncertainty={"weight": (se * factor)[None]})
        pruner.prune(0.5)
        return int(pruner.masks["weight"][0].int().argmax())

    one = torch.ones(2)
    assert (keeps(pw.Magnitude(), one), keeps(pw.Magnitude(), scale)) == (0, 1)
    assert (keeps(pw.Wald(), one), keeps(pw.Wald(), scale)) == (1, 1)
    relative = pw.MagnitudeUncertainty(lam=0.01)
    assert (keeps(relative, one), keeps(relative, scale)) == (0, 1)  # lambda > 0 is not invariant to one input's units
