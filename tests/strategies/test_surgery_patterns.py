"""Surgery with groups: n of m, blocks and filters go and come back whole, and the count holds after every operation."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import one_step, sgd, wide

pytestmark = pytest.mark.usefixtures("one_thread")

# Of the middle matrix, 20 x 20, by the size of a group.
PATTERNS = [(pw.KeepNOfM(2, 4), None), (pw.KeepNOfM(1, 4), 0.5), (pw.Block(4, 5), 0.75), (pw.Filter(), 0.6)]
PATTERNS += [(pw.Filter(dim=1, score="l1"), 0.6), (pw.Block(1, 5, score="mean"), 0.8)]


def groups(pattern, mask):
    """One group a row."""
    if isinstance(pattern, pw.KeepNOfM):
        return mask.reshape(-1, pattern.m)
    if isinstance(pattern, pw.Filter):
        return mask if pattern.dim == 0 else mask.T
    return (
        mask.unflatten(0, (-1, pattern.rows)).unflatten(2, (-1, pattern.cols)).transpose(1, 2).flatten(0, 1).flatten(1)
    )


def operate(pattern, level, steps=25, **choice):
    model = wide()
    optimizer = sgd(model, lr=0.3)
    choice = {"criterion": "abs", "gamma": 0.0, "targets": "2", **choice}
    surgery = pw.Surgery(model, optimizer, sparsity=level, pattern=pattern, **choice)
    masks = []
    for step in range(steps):
        one_step(model, optimizer, step)
        masks.append(surgery.masks["2.weight"])
    return surgery, masks


@pytest.mark.parametrize(("pattern", "level"), PATTERNS, ids=str)
def test_groups_are_exchanged_whole_at_a_constant_count(pattern, level):
    surgery, masks = operate(pattern, level, margin=0.0)
    total = round((1 - (pattern.sparsity if level is None else level)) * 400)
    for mask in masks:
        alive = groups(pattern, mask).sum(1)
        assert int(alive.sum()) == total
        if isinstance(pattern, pw.KeepNOfM):
            assert alive.min() >= pattern.n
        else:
            assert set(alive.tolist()) <= {0, groups(pattern, mask).shape[1]}
        assert torch.equal(surgery.model[2].weight != 0, masks[-1])
    back = sum(int((after & ~before).sum()) for before, after in pairwise(masks))
    assert back > 0, "nothing ever came back"
    assert surgery.prune(level).kept == total
    assert not surgery.active


def test_without_a_margin_a_choice_is_the_patterns_own():
    surgery, masks = operate(pw.Filter(score="l1"), 0.5, margin=0.0, steps=10)
    with surgery._subject.in_sight():
        norms = surgery.model[2].weight.detach().abs().sum(1)
    best = norms.argsort(descending=True)[:10]
    assert masks[-1].any(1).nonzero().flatten().tolist() == sorted(best.tolist())


def test_a_wide_margin_keeps_what_is_alive():
    """With 0.9, a dark group must score 19 times what a living one does."""
    _, loose = operate(pw.Block(4, 5), 0.75, margin=0.0)
    _, tight = operate(pw.Block(4, 5), 0.75, margin=0.9)
    changes = [sum(not torch.equal(a, b) for a, b in pairwise(m)) for m in (loose, tight)]
    assert changes[0] > changes[1] == 0


def test_a_grouped_exchange_by_the_axes_of_the_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose1d(6, 8, 3), nn.Flatten(), nn.Linear(64, 4))
    optimizer = sgd(model, lr=0.05)
    surgery = pw.Surgery(model, optimizer, sparsity=0.5, pattern="filter", criterion="abs", gamma=0.0, targets="0")
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 6, 6)).square().mean().backward()
        optimizer.step()
    alive = surgery.masks["0.weight"].transpose(0, 1).flatten(1)
    assert sorted(alive.sum(1).tolist()) == [0] * 4 + [18] * 4


def test_it_goes_on_from_a_saved_state():
    one, _ = operate(pw.Filter(), 0.6, steps=12)
    parts = one.state_dict(), one.model.state_dict(), one.optimizers[0].state_dict()
    state, model, momenta = deepcopy(parts)
    two, _ = operate(pw.Filter(), 0.6, steps=0)
    two.model.load_state_dict(model)
    two.optimizers[0].load_state_dict(momenta)
    two.load_state_dict(state)
    for step in range(12, 24):
        for surgery in (one, two):
            one_step(surgery.model, surgery.optimizers[0], step)
        assert torch.equal(one.masks["2.weight"], two.masks["2.weight"])
        assert torch.equal(one.model[2].weight, two.model[2].weight)


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        ({"threshold": 0.1, "pattern": "filter"}, "threshold chooses weights one by one.*Filter"),
        ({"sparsity": 0.7, "pattern": "n-of-m"}, "sparsity=0.7.*KeepNOfM.*0.5 and no more"),
        ({"pattern": "block"}, "needs one of them"),
        ({"sparsity": 0.5, "pattern": pw.Block(3, 3)}, "'2.weight'.*Block"),
    ],
)
def test_what_groups_cannot_do_is_said_at_once(choice, match):
    model = wide()
    with pytest.raises(ValueError, match=match):
        pw.Surgery(model, sgd(model), targets="2", **choice)
    pw.Pruner(model, criterion="abs")  # nothing is left attached
