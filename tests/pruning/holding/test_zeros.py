"""Zeros hold in every kind of training loop: clipping, accumulation, closures, groups, several optimizers, none."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import prunewald as pw
from tests.training import assert_zeros, closure_step, loss_of, net, one_step, sgd, train

pytestmark = pytest.mark.usefixtures("one_thread")


def pruned(seed: int = 0) -> tuple[nn.Module, torch.optim.SGD, pw.Pruner]:
    """A model in the middle of training, with momentum, 80 % pruned."""
    model = net(seed)
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    train(model, optimizer, 3)
    pruner.prune(0.8)
    return model, optimizer, pruner


def plain_grads(model: nn.Module, *steps: int) -> dict[str, Tensor]:
    """The gradients over some batches as a model without any hook has them."""
    copy = net()
    copy.load_state_dict(model.state_dict())
    for step in steps:
        loss_of(copy, step).backward()
    return {name: p.grad for name, p in copy.named_parameters() if p.grad is not None}


def masked_grads(model: nn.Module, masks: dict[str, Tensor], *steps: int) -> dict[str, Tensor]:
    return {name: grad * masks.get(name, 1.0) for name, grad in plain_grads(model, *steps).items()}


def norm(grads: dict[str, Tensor]) -> Tensor:
    return torch.cat([grad.flatten() for grad in grads.values()]).square().sum().sqrt()


def grad_of(model: nn.Module, name: str) -> Tensor:
    grad = model.get_parameter(name).grad
    assert grad is not None
    return grad


def test_clipping_sees_the_masked_gradient_only():
    model, optimizer, pruner = pruned()
    optimizer.zero_grad()
    loss_of(model, 3).backward()
    seen = clip_grad_norm_(model.parameters(), 1e-3)
    masked, plain = norm(masked_grads(model, pruner.masks, 3)), norm(plain_grads(model, 3))
    torch.testing.assert_close(seen, masked)
    assert seen < 0.99 * plain
    optimizer.step()
    assert_zeros(model, pruner.masks)


def test_accumulated_gradients_are_the_masked_sum():
    model, optimizer, pruner = pruned()
    optimizer.zero_grad()
    for step in (3, 4, 5):
        loss_of(model, step).backward()
    for name, grad in masked_grads(model, pruner.masks, 3, 4, 5).items():
        assert torch.equal(grad_of(model, name), grad), name
    optimizer.step()
    assert_zeros(model, pruner.masks)


def test_pruning_between_two_accumulated_passes_masks_both():
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    loss_of(model, 0).backward()
    pruner.prune(0.8)
    assert_gradients_masked(model, pruner.masks)
    loss_of(model, 1).backward()
    assert_gradients_masked(model, pruner.masks)
    optimizer.step()
    assert_zeros(model, pruner.masks)


def assert_gradients_masked(model: nn.Module, masks: dict[str, Tensor]) -> None:
    for name, mask in masks.items():
        grad = grad_of(model, name)
        assert not grad[~mask].any()
        assert grad[mask].any()


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_a_closure_changes_nothing(name):
    weights = []
    for take in (one_step, closure_step):
        model = net()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=3, total_steps=4))
        for step in range(4):
            take(model, optimizer, step)
        pruner.prune(0.8)
        for step in range(4, 8):
            take(model, optimizer, step)
            assert_zeros(model, pruner.masks)
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_each_parameter_group_keeps_its_learning_rate():
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters(), "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    grads = masked_grads(model, pruner.masks, 0)
    one_step(model, optimizer, 0)
    for name, param in model.named_parameters():
        torch.testing.assert_close(param.detach(), before[name] - (0.5 if name < "2" else 0.01) * grads[name])
    assert_zeros(model, pruner.masks)


def test_rprop_goes_back_to_the_learning_rate_of_the_group():
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "lr": 0.02}]
    optimizer = torch.optim.Rprop(groups)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    train(model, optimizer, 4)
    pruner.prune(0.8)
    for name, lr in {"0.weight": 0.05, "2.weight": 0.02}.items():
        size, mask = optimizer.state[model.get_parameter(name)]["step_size"], pruner.masks[name]
        assert torch.equal(size[~mask], torch.full_like(size[~mask], lr))
        assert (size[mask] != lr).any()


def both(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [sgd(model[0]), torch.optim.Adam(model[2].parameters(), lr=0.01)]


def test_several_optimizers():
    model = net()
    first, second = both(model)
    pruner = pw.Pruner(model, [first, second], uncertainty=pw.PseudoBootstrap(last=3))
    for step in range(4):
        loss_of(model, step).backward()
        first.step()
        second.step()
        model.zero_grad()
    pruner.prune(0.8)
    for step in range(4, 8):
        loss_of(model, step).backward()
        for optimizer in (first, second):
            optimizer.step()
            assert_zeros(model, pruner.masks)
        model.zero_grad()


def test_each_of_several_optimizers_counts_its_own_steps():
    """As in adversarial training, where one side steps more often: sigma is over that side's steps."""
    model = net()
    first, second = both(model)
    pruner = pw.Pruner(model, [first, second], uncertainty=pw.PseudoBootstrap(every=1))
    seen = {"0.weight": [], "2.weight": []}
    for step in range(6):
        model.zero_grad()
        loss_of(model, step).backward()
        for name, optimizer in [("0.weight", first)] + [("2.weight", second)] * (step % 2):
            optimizer.step()
            seen[name].append(model.get_parameter(name).detach().clone())
    assert [len(snapshots) for snapshots in seen.values()] == [6, 3]
    for name, sigma in pruner.sigma().items():
        torch.testing.assert_close(sigma, torch.stack(seen[name]).std(0), rtol=1e-5, atol=1e-9)


@torch.no_grad()
def own_step(model: nn.Module, step: int) -> None:
    """Somebody's own gradient descent, with weight decay on everything."""
    model.zero_grad()
    with torch.enable_grad():
        loss_of(model, step).backward()
    for name, param in model.named_parameters():
        param.sub_(0.1 * grad_of(model, name) + 0.01 * param + 0.001)


def test_without_optimizer_apply_is_the_step():
    model = net()
    pruner = pw.Pruner(model, uncertainty=pw.PseudoBootstrap(last=3, total_steps=4))
    snapshots = []
    for step in range(4):
        own_step(model, step)
        pruner.apply_()
        snapshots.append(model[0].weight.detach().clone())
    sigma = torch.stack(snapshots[1:]).std(0)
    torch.testing.assert_close(pruner.sigma()["0.weight"], sigma, rtol=1e-5, atol=1e-9)
    pruner.prune(0.8)
    for step in range(4, 8):
        own_step(model, step)
        pruner.apply_()
        assert_zeros(model, pruner.masks)
    assert not torch.equal(model[0].weight[pruner.masks["0.weight"]], snapshots[-1][pruner.masks["0.weight"]])


def test_apply_holds_at_once_what_something_else_overwrote():
    model, _, pruner = pruned()
    model.load_state_dict(net(1).state_dict())
    pruner.apply_()
    assert_zeros(model, pruner.masks)


def test_a_layer_frozen_while_pruned_holds_when_it_trains_again():
    model = net()
    optimizer = sgd(model)
    model[0].requires_grad_(False)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    model[0].requires_grad_(True)
    for step in range(3):
        one_step(model, optimizer, step)
        assert_zeros(model, pruner.masks)


def test_pruning_further_holds_old_and_new_zeros():
    model, optimizer, pruner = pruned()
    old = pruner.masks
    one_step(model, optimizer, 3)
    pruner.prune(0.9)
    assert all(not (mask & ~old[name]).any() for name, mask in pruner.masks.items())
    for step in range(4, 7):
        one_step(model, optimizer, step)
        assert_zeros(model, pruner.masks)
    assert pruner.sparsity == pytest.approx(0.9, abs=0.01)


def test_a_dry_run_holds_nothing():
    model = net()
    pruner = pw.Pruner(model, sgd(model), criterion="magnitude")
    before = model[0].weight.detach().clone()
    pruner.prune(0.8, dry_run=True)
    assert torch.equal(model[0].weight, before)
    assert all(mask.all() for mask in pruner.masks.values())


def test_a_layer_pruned_while_frozen_gets_its_gradient_masked_once_it_trains():
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.8)
    model[0].weight.requires_grad_(True)
    train(model, optimizer, 2)
    assert not model[0].weight.grad[~pruner.masks["0.weight"]].any()


def test_what_a_captured_step_cannot_follow_is_told_once():
    """What a step tells on a CUDA device, where it is captured in a graph: which parameters it holds."""
    _, _, pruner = pruned()
    pruner.zeros.captured = frozenset({"0.weight"})
    with pytest.warns(UserWarning, match="before this pruning.*anew"):
        pruner.prune(0.9)
    pruner.prune(0.92)
    pruner.zeros.captured = frozenset(pruner.masks)
    pruner.prune(0.95)
    with pytest.warns(UserWarning, match="before its masks were dropped.*anew"):
        pruner.reset()
