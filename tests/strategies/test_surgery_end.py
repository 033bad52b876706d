"""How a surgery ends: by finish, prune or detach; and masks from elsewhere."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.resuming import same
from tests.strategies.surgery_helpers import full, gradients, running
from tests.training import assert_zeros, hooks_on, net, one_step, sgd

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]


def assert_plain(model: nn.Module, optimizer: Any, surgery: pw.Surgery) -> None:
    """From here on it is a Pruner: zeros hold, gradients are masked, moments forgotten."""
    masks = surgery.masks
    for step in range(40, 44):
        for name, mask in masks.items():
            assert not optimizer.state[model.get_parameter(name)]["momentum_buffer"][~mask].any()
            assert optimizer.state[model.get_parameter(name)]["momentum_buffer"][mask].any()
        one_step(model, optimizer, step)
        assert_zeros(model, masks)
        assert not any(grad[~masks[name]].any() for name, grad in gradients(model).items())
    assert same(surgery.masks, masks)
    assert surgery.state_dict()["dark"][0] == {}


def test_finish_keeps_the_masks():
    model, optimizer, surgery = running()
    before, masks = {n: p.detach().clone() for n, p in model.named_parameters()}, surgery.masks
    surgery.finish()
    assert same(surgery.masks, masks)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not surgery.active
    assert_plain(model, optimizer, surgery)
    surgery.finish()
    surgery.prune(0.8)
    assert surgery.sparsity == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_prune_ends_with_an_exact_count_and_the_dark_values(share):
    model, optimizer, surgery = running()
    weights = full(surgery)
    chosen, report = surgery.choose(share)
    assert surgery.prune(share) == report == surgery.report
    assert same(surgery.masks, chosen)
    for name, weight in weights.items():
        cut = weight.abs().flatten().sort().values[round(share * weight.numel())]
        expected = torch.where(weight.abs() >= cut, weight, 0.0)
        assert torch.equal(model.get_parameter(name), expected), name
    assert_plain(model, optimizer, surgery)


def test_pruning_some_layers_leaves_the_others_as_they_are():
    model, _, surgery = running()
    masks = surgery.masks
    surgery.prune({"0.weight": 0.25})
    assert (model[0].weight == 0).sum() == 12
    assert torch.equal(surgery.masks["2.weight"], masks["2.weight"])
    assert_zeros(model, surgery.masks)


def test_prune_by_threshold_and_by_significance():
    _, _, surgery = running()
    weights = full(surgery)
    surgery.prune(threshold=0.2)
    assert all(torch.equal(surgery.masks[n], w.abs() >= 0.2) for n, w in weights.items())
    _, _, surgery = running(uncertainty=pw.PseudoBootstrap(last=6), criterion="wald")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert surgery.prune(alpha=0.05).kept == int(sum(m.sum() for m in surgery.masks.values()))


def test_a_pruning_that_fails_ends_nothing():
    model, optimizer, surgery = running()
    with pytest.raises(ValueError, match="sparsity=1.5"):
        surgery.prune(1.5)
    assert surgery.active
    one_step(model, optimizer, 12)
    assert surgery.state_dict()["dark"][0]


def test_detach_drops_the_dark_and_leaves_the_zeros():
    model, optimizer, surgery = running()
    before, masks = {n: p.detach().clone() for n, p in model.named_parameters()}, surgery.masks
    surgery.detach()
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert hooks_on(model, optimizer) == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert surgery.state_dict()["dark"][0] == {}
    plain, other = net(), sgd(net())
    plain.load_state_dict(model.state_dict())
    other = sgd(plain)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    one_step(model, optimizer, 12)
    one_step(plain, other, 12)
    assert same(model.state_dict(), plain.state_dict())
    assert same(surgery.masks, masks)
    for act in (lambda: surgery.prune(0.5), surgery.finish, lambda: surgery.set_masks(masks), surgery.scores):
        with pytest.raises(ValueError, match="detached: make a new one"):
            act()


def test_a_surgery_goes_on_from_other_masks():
    model, optimizer, surgery = running(stop=12)
    weights = full(surgery)
    masks = {name: torch.rand(w.shape, generator=torch.Generator().manual_seed(0)) < 0.5 for name, w in weights.items()}
    surgery.set_masks(masks)
    assert surgery.active
    assert same(surgery.masks, masks)
    assert same(full(surgery), weights)
    assert_zeros(model, masks)
    one_step(model, optimizer, 12)
    assert_zeros(model, masks)
    assert all((full(surgery)[n] != weights[n])[~mask].any() for n, mask in masks.items())
    masks["0.weight"][:] = True
    assert not surgery.masks["0.weight"].all(), "the masks were not copied"


def test_masks_after_the_end_are_set_as_a_pruners():
    model, optimizer, surgery = running()
    surgery.finish()
    masks = {name: ~mask for name, mask in surgery.masks.items()}
    surgery.set_masks(masks)
    one_step(model, optimizer, 12)
    assert_zeros(model, masks)
    assert all(not model.get_parameter(name).grad[~mask].any() for name, mask in masks.items())
