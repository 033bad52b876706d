import numpy as np
import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.strategies import iterative
from prunewald.uncertainty import FisherDiagonal, InverseFisher
from tests.resuming import same
from tests.strategies.helpers import CHOICES, LEVELS, Work, adam, trained
from tests.training import minus_zero_or_worse

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("choice", CHOICES)
def test_it_is_the_loop_one_would_write(choice):
    by_hand, called = (trained(**CHOICES[choice]) for _ in range(2))
    torch.manual_seed(7)
    reports = []
    for level in LEVELS:
        reports.append(by_hand.pruner.prune(level))
        last = by_hand.steps(12)
    torch.manual_seed(7)
    found = iterative(called.pruner, LEVELS, called.train)
    assert same(called.state(), by_hand.state())
    assert [one.report for one in found] == reports
    assert [(one.index, one.sparsity) for one in found] == [(1, 0.3), (2, 0.6), (3, 0.8)]
    assert found[-1].result == last
    assert called.pruner.sparsity == pytest.approx(0.8, abs=0.01)
    for name, mask in called.pruner.masks.items():
        assert not minus_zero_or_worse(called.model.get_parameter(name), ~mask)


def top(score, alive, level):
    """The mask of the highest scores among the living."""
    keep = alive.numel() - round(level * alive.numel())
    order = torch.where(alive, score, -torch.inf).flatten().argsort(descending=True)
    mask = torch.zeros(alive.numel(), dtype=torch.bool)
    mask[order[:keep]] = True
    return mask.view_as(alive)


def tau(weight, alive, sigma):
    return weight.abs() / (weight[alive].std() + sigma)


def pseudo_bootstrap(history, work, name, alive):
    return torch.stack([weights[name] for weights in history[-5:]]).std(0)


def second_moment(history, work, name, alive):
    state = work.optimizer.state[work.model.get_parameter(name)]
    sigma = (state["exp_avg_sq"] / (1 - 0.999 ** state["step"])).rsqrt()
    spread = work.model.get_parameter(name).detach()[alive].std()
    return sigma / sigma[alive].median() * spread


@pytest.mark.parametrize(
    ("choice", "sigma"),
    [
        ({"uncertainty": pw.PseudoBootstrap(last=5)}, pseudo_bootstrap),
        ({"optimizer": adam, "uncertainty": pw.SecondMoment()}, second_moment),
    ],
)
def test_sigma_and_spread_are_of_the_survivors(choice, sigma):
    """Round by round the masks are those of the formula, with what the training since the last round gave."""
    work = Work(criterion=pw.MagnitudeUncertainty(), **choice)
    history, expected = [], {}

    def watched(*_):
        history.append({n: p.detach().clone() for n, p in work.model.named_parameters()})

    work.optimizer.register_step_post_hook(watched)
    work.steps(6)

    def expect(level):
        masks = work.pruner.masks
        for name, alive in masks.items():
            weight = work.model.get_parameter(name).detach()
            expected[name] = top(tau(weight, alive, sigma(history, work, name, alive)), alive, level)

    def train(one):
        assert all(torch.equal(work.pruner.masks[n], m) for n, m in expected.items()), one.sparsity
        work.steps(6)
        if one.index < len(LEVELS):
            expect(LEVELS[one.index])

    expect(LEVELS[0])
    assert [one.sparsity for one in iterative(work.pruner, LEVELS, train)] == list(LEVELS)


@pytest.mark.parametrize("estimator", [FisherDiagonal(), InverseFisher(inverse="damped")])
def test_an_offline_estimate_is_made_anew_of_the_survivors(estimator):
    work = trained(criterion=pw.MagnitudeUncertainty())
    x = torch.randn(64, 6)
    given, sigmas = work.pruner.uncertainty, []

    def estimate():
        masks = work.pruner.masks
        batches = [(x, torch.tanh(x[:, :4]))]
        sigma = estimator.estimate(work.model, batches, nn.functional.mse_loss, masks=masks)
        expected = {}
        for name, alive in masks.items():
            assert sigma[name][~alive].isinf().all()
            expected[name] = (tau(work.model.get_parameter(name).detach(), alive, sigma[name]), alive)
        sigmas.append(expected)
        return sigma

    def train(one):
        for name, (score, alive) in sigmas[-1].items():
            assert torch.equal(work.pruner.masks[name], top(score, alive, one.sparsity))
        assert "a dict of 4 tensors" in str(one.report)
        work.steps(6)

    iterative(work.pruner, LEVELS, train, estimate=estimate)
    assert len(sigmas) == 3
    assert work.pruner.uncertainty is given


def test_levels_may_come_from_an_iterator():
    work = trained(criterion="magnitude")
    assert len(iterative(work.pruner, (level for level in LEVELS), work.train)) == 3


# ---- results --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [0.5, np.float64(0.5), torch.tensor(0.5, requires_grad=True), np.float32(0.5)])
def test_a_result_is_a_number_that_the_folder_keeps(result, tmp_path):
    work = trained(criterion="magnitude")
    first = iterative(work.pruner, LEVELS, lambda one: result, folder=tmp_path)
    again = iterative(work.pruner, LEVELS, work.train, folder=tmp_path)
    assert first == again
    assert [type(one.result) for one in again] == [float] * 3
    assert str(first[1].report) == str(again[1].report)


def test_any_other_result_is_an_error():
    work = trained(criterion="magnitude")
    with pytest.raises(TypeError, match="training at 0.3 gave dict"):
        iterative(work.pruner, LEVELS, lambda one: {"loss": 1.0})
