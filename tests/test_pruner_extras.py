"""Choosing without pruning, masks from elsewhere, copies that follow, targets for a loss."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import prunewald as pw
from prunewald.pruning.resuming import unpacked
from tests.resuming import same
from tests.training import assert_zeros, closure_step, fused, hooks_on, loss_of, net, one_step, sgd, train

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:sigma is over", "ignore:standard errors from", "ignore:.*no standard error"),
]


def trained(steps: int = 8, seed: int = 0, **options: Any) -> tuple[Any, Any, pw.Pruner]:
    model = net(seed)
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, **{"uncertainty": pw.PseudoBootstrap(last=4), **options})
    train(model, optimizer, steps)
    return model, optimizer, pruner


def snapshot(model: nn.Module, optimizer: Any, pruner: pw.Pruner) -> Any:
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))


# ---- choose ------------------------------------------------------------------------------------------------------

REQUESTS = [
    {"sparsity": 0.7},
    {"sparsity": {"0.weight": 0.5}},
    {"threshold": 1.5},
    {"alpha": 0.05},
    {"fdr": 0.1},
]


@pytest.mark.parametrize("scope", ["layer", "global", "row"])
@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_what_is_chosen_is_what_prune_sets(request_, scope):
    model, optimizer, pruner = trained(scope=scope)
    before = snapshot(model, optimizer, pruner)
    masks, report = pruner.choose(**request_)
    assert same(snapshot(model, optimizer, pruner), before)
    assert hooks_on(model, optimizer) == 1, "a gradient is masked"
    assert pruner.report is None
    assert pruner.prune(**request_) == report == pruner.report
    assert same(pruner.masks, masks)
    assert 0 < pruner.sparsity < 1


def test_a_pattern_with_a_sparsity_of_its_own_is_asked_for_none():
    model = nn.Sequential(nn.Linear(8, 8))
    pruner = pw.Pruner(model, criterion="magnitude", pattern="n-of-m")
    masks, _ = pruner.choose()
    pruner.prune()
    assert same(pruner.masks, masks)
    assert pruner.sparsity == 0.5


def test_the_masks_chosen_are_the_callers_own():
    _, _, pruner = trained(criterion="magnitude")
    pruner.prune(0.5)
    masks, _ = pruner.choose({"0.weight": 0.6})
    masks["2.weight"][:] = True
    assert pruner.sparsity == 0.5


# ---- set_masks ------------------------------------------------------------------------------------------------------


def test_masks_of_another_pruner_on_fresh_weights():
    """A lottery ticket: the masks of the trained network on the weights of its beginning."""
    _, _, found = trained()
    found.prune(0.8)
    model, optimizer, pruner = trained(0)
    start = copy.deepcopy(model.state_dict())
    pruner.set_masks(found.masks)
    for name, weight in model.state_dict().items():
        kept = found.masks.get(name, torch.ones((), dtype=torch.bool))
        assert torch.equal(weight, torch.where(kept, start[name], 0.0))
    for step in range(4):
        one_step(model, optimizer, step)
        assert_zeros(model, found.masks)
        assert all(not model.get_parameter(n).grad[~m].any() for n, m in found.masks.items())
    assert pruner.sparsity == found.sparsity
    pruner.prune(0.9)
    assert all((mask <= found.masks[name]).all() for name, mask in pruner.masks.items())


def test_weights_that_masks_bring_back_learn_again():
    model, optimizer, pruner = trained()
    pruner.prune(0.8)
    old = pruner.masks
    masks = {name: ~mask for name, mask in old.items()}
    pruner.set_masks(masks)
    assert all(not model.get_parameter(name).any() for name in masks), "all weights are zero now"
    for step in range(8, 11):
        one_step(model, optimizer, step)
        assert_zeros(model, masks)
    assert model[2].weight[masks["2.weight"]].any()
    assert not optimizer.state[model[2].weight]["momentum_buffer"][~masks["2.weight"]].any()


def test_the_window_starts_anew_and_the_masks_are_copied():
    model, optimizer, pruner = trained()
    masks = {name: p.abs() > 0.1 for name, p in model.named_parameters() if p.dim() == 2}
    pruner.set_masks(masks)
    with pytest.raises(ValueError, match="0 snapshot"):
        pruner.prune(0.9)
    masks["0.weight"][:] = False
    assert pruner.masks["0.weight"].any()
    state = snapshot(model, optimizer, pruner)[2]
    fresh = trained(0, seed=1)[2]
    fresh.load_state_dict(state)
    assert same(fresh.masks, pruner.masks)


def test_the_history_of_lbfgs_is_dropped():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    closure_step(model, optimizer, 0)
    pruner.set_masks({name: p.abs() > 0.1 for name, p in pruner.targets().items()})
    assert not optimizer.state[model[0].weight]


def good() -> dict[str, Any]:
    return {"0.weight": torch.zeros(8, 6, dtype=torch.bool), "2.weight": torch.zeros(4, 8, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({}, "'0.weight'.*'2.weight'.*pruner.masks"),
        (good() | {"0.bias": torch.ones(8).bool()}, "'0.bias'"),
        (good() | {"2.weight": torch.ones(4, 8)}, "'2.weight'.*torch.float32.*bool"),
        (good() | {"2.weight": [True]}, "'2.weight'.*list.*bool"),
        (good() | {"2.weight": torch.ones(8, 4).bool()}, r"'2.weight'.*\(8, 4\).*\(4, 8\)"),
    ],
)
def test_masks_that_do_not_fit_are_refused_and_nothing_changes(masks, message):
    model, optimizer, pruner = trained()
    before = snapshot(model, optimizer, pruner)
    with pytest.raises(ValueError, match=message):
        pruner.set_masks(masks)
    assert same(snapshot(model, optimizer, pruner), before)


def test_no_masks_are_set_after_detach():
    model, _, pruner = trained()
    pruner.detach()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="detached: make a new one"):
        pruner.set_masks(good())
    assert same(dict(model.state_dict()), dict(before))


def test_after_detach_a_state_is_told_and_none_is_taken():
    model, optimizer, pruner = trained()
    pruner.prune(0.5)
    masks = pruner.masks
    pruner.detach()
    train(model, optimizer, 2)
    before = copy.deepcopy(model.state_dict())
    state = pruner.state_dict()
    assert same(unpacked(state["masks"]), masks)
    with pytest.raises(ValueError, match="detached: make a new one"):
        pruner.load_state_dict(state)
    model.eval()(torch.randn(8, 6))
    assert same(dict(model.state_dict()), dict(before)), "nobody holds these weights"


# ---- follow ------------------------------------------------------------------------------------------------------


class Named(nn.Module):
    """A model that has a part called `module`, as a wrapper would."""

    def __init__(self) -> None:
        super().__init__()
        self.module = net()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.module(x))
        return out


AVERAGES: dict[str, Any] = {
    "ema": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "swa": AveragedModel,
    "own": copy.deepcopy,
}


def update(average: nn.Module, model: nn.Module) -> None:
    if isinstance(average, AveragedModel):
        average.update_parameters(model)
        return
    with torch.no_grad():
        for mine, new in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 0.1)


@pytest.mark.parametrize("make", [net, Named])
@pytest.mark.parametrize("kind", AVERAGES)
def test_an_average_has_the_zeros_of_a_gradual_schedule(kind, make):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = pw.Pruner(model, optimizer, schedule=pw.Cubic(0.8, begin=2, end=12, every=2))
    average, untold = AVERAGES[kind](model), AVERAGES[kind](model)
    pruner.follow(average)
    for step in range(14):
        one_step(model, optimizer, step)
        update(average, model)
        update(untold, model)
        if pruner.sparsity:
            assert_zeros(getattr(average, "module", average) if kind != "own" else average, pruner.masks)
    name = "module.0.weight" if make is Named else "0.weight"
    inside = untold.module if kind != "own" else untold
    assert inside.get_parameter(name)[~pruner.masks[name]].any(), "there was nothing to follow"
    assert pruner.sparsity == pytest.approx(0.8, abs=0.02)


def test_following_begins_at_once_and_ends_with_detach():
    model, _, pruner = trained(criterion="magnitude")
    pruner.prune(0.5)
    twin = net(1)
    pruner.follow(twin)
    assert_zeros(twin, pruner.masks)
    pruner.prune(0.6)
    assert_zeros(twin, pruner.masks)
    state = copy.deepcopy(pruner.state_dict())
    twin.load_state_dict(net(1).state_dict())
    pruner.load_state_dict(state)
    assert_zeros(twin, pruner.masks)
    pruner.detach()
    twin.load_state_dict(net(1).state_dict())
    pruner.apply_()
    assert twin[0].weight.all()
    assert_zeros(model, pruner.masks)


@pytest.mark.slow
def test_a_copy_of_another_type_and_a_compiled_one():
    _, _, pruner = trained(criterion="magnitude")
    pruner.prune(0.5)
    half, compiled = net(1).to(torch.bfloat16), torch.compile(net(1))
    for twin in (half, compiled):
        pruner.follow(twin)
        assert_zeros(getattr(twin, "_orig_mod", twin), pruner.masks)


@pytest.mark.parametrize(
    ("copied", "message"),
    [
        (lambda model: nn.Sequential(nn.Linear(6, 8)), "Sequential.*'2.weight' is missing"),
        (lambda model: nn.Sequential(nn.Linear(6, 9)), r"'0.weight'.*\(9, 6\).*\(8, 6\)"),
        (lambda model: model, "'0.weight'.*AveragedModel"),
    ],
)
def test_what_is_no_copy_is_refused(copied, message):
    model, _, pruner = trained(0)
    with pytest.raises(ValueError, match=message):
        pruner.follow(copied(model))


# ---- targets -----------------------------------------------------------------------------------------------------


def test_targets_are_those_of_the_model_and_a_loss_may_use_them():
    model, _, pruner = trained(0, targets=["0.weight[1:3]", "2.weight"])
    targets = pruner.targets()
    assert {name: tuple(t.shape) for name, t in targets.items()} == {"0.weight[1:3]": (2, 6), "2.weight": (4, 8)}
    assert targets["2.weight"] is model[2].weight
    sum(t.square().sum() for t in targets.values()).backward()
    assert torch.equal(model[2].weight.grad, 2 * model[2].weight)
    expected = torch.zeros(8, 6)
    expected[1:3] = 2 * model[0].weight.detach()[1:3]
    assert torch.equal(model[0].weight.grad, expected)


def test_a_penalty_on_the_targets_moves_no_pruned_weight():
    model, optimizer, pruner = trained(criterion="magnitude")
    pruner.prune(0.5)
    for step in range(3):
        optimizer.zero_grad()
        (loss_of(model, step) + sum((t - 1).abs().sum() for t in pruner.targets().values())).backward()
        optimizer.step()
        assert_zeros(model, pruner.masks)


# ---- what was gathered -------------------------------------------------------------------------------------------


def test_a_statistic_that_cannot_watch_one_optimizers_weights_leaves_no_hook():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine, self.own_weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

    model = Odd()
    optimizers = [torch.optim.SGD([model.fine.weight], lr=0.1), torch.optim.SGD([model.own_weight], lr=0.1)]
    with pytest.raises(ValueError, match="'own_weight'"):
        pw.Pruner(model, optimizers, criterion="wanda")
    assert not model.fine._forward_pre_hooks
    assert hooks_on(model, *optimizers) == 0


def test_skipped_steps_are_counted_without_waiting_for_the_device():
    """Where nothing is scheduled, the count stays a tensor on the device until it is read."""
    model = net()
    optimizer = fused("SGD", model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    for found in (0.0, 1.0, 0.0):
        optimizer.found_inf = torch.tensor([found])
        one_step(model, optimizer, 0)
    assert pruner.steps == 2
    assert isinstance(pruner._steps, Tensor)
    assert pruner.state_dict()["steps"] == 2
    assert type(pruner.state_dict()["steps"]) is int
