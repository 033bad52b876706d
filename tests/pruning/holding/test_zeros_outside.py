"""Masks live outside the model: it keeps its type, names and state_dict, can be copied, saved, moved, let go."""

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import hooks_on, loss_of, minus_zero_or_worse, net, one_step, sgd, train, zeros_hold

pytestmark = pytest.mark.usefixtures("one_thread")


def pruned(uncertainty: object = None) -> tuple[nn.Sequential, torch.optim.SGD, pw.Pruner]:
    model = net()
    optimizer = sgd(model)
    pruner = pw.Pruner(model, optimizer, uncertainty=uncertainty or pw.PseudoBootstrap(last=3))  # type: ignore[arg-type]
    train(model, optimizer, 3)
    pruner.prune(0.8)
    one_step(model, optimizer, 3)  # a forward pass, gradients and momentum are there
    return model, optimizer, pruner


def test_type_names_and_state_dict_are_those_of_the_plain_model():
    model, plain = pruned()[0], net()
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    for kind in ("named_parameters", "named_buffers", "named_modules"):
        assert [name for name, _ in getattr(model, kind)()] == [name for name, _ in getattr(plain, kind)()]
    assert list(model.state_dict()) == list(plain.state_dict())
    assert all(type(p) is nn.Parameter and p.is_leaf for p in model.parameters())
    hooks = [hook for module in copy.deepcopy(model).modules() for hook in module._forward_pre_hooks.values()]
    assert all(type(hook.__self__) is nullcontext for hook in hooks), "in a copy they do nothing"
    assert not any(module._forward_hooks for module in model.modules())


def test_a_plain_model_loads_the_state_dict():
    model, _, pruner = pruned()
    plain = net(1)
    plain.load_state_dict(model.state_dict())
    assert zeros_hold(plain, pruner)
    x = torch.randn(3, 6)
    assert torch.equal(plain(x), model(x))


def through_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch_save,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_equal_and_free(way):
    model, optimizer, pruner = pruned()
    twin = COPIES[way](model)
    assert type(twin) is type(model)
    assert all(torch.equal(p, twin.get_parameter(name)) for name, p in model.named_parameters())
    assert hooks_on(twin) == 0
    one_step(twin, sgd(twin), 4)
    assert not zeros_hold(twin, pruner)
    one_step(model, optimizer, 4)
    assert zeros_hold(model, pruner)


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_can_be_pruned_further(way):
    twin = COPIES[way](pruned()[0])
    optimizer = sgd(twin)
    again = pw.Pruner(twin, optimizer, criterion="magnitude")
    again.prune(0.9)
    one_step(twin, optimizer, 4)
    assert zeros_hold(twin, again)


def test_a_copied_optimizer_is_free():
    _, optimizer, _ = pruned()
    assert hooks_on(nn.Identity(), copy.deepcopy(optimizer)) == 0


CHANGES = {
    "float64": lambda model: model.to(torch.float64),
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "eval-and-train": lambda model: model.eval().train(),
    "frozen-and-back": lambda model: model.requires_grad_(False).requires_grad_(True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_zeros_hold_after_a_change_of_the_model(change):
    model, _, pruner = pruned()
    CHANGES[change](model)
    optimizer = pruner.optimizers[0]
    optimizer.state.clear()  # its momentum is in the old type
    before = model[0].weight.detach().clone()
    for step in range(4, 8):
        one_step(model, optimizer, step)
        assert zeros_hold(model, pruner)
    assert not torch.equal(model[0].weight, before)
    pruner.prune(0.9)


@pytest.mark.parametrize("uncertainty", [pw.PseudoBootstrap(last=6, total_steps=6), pw.SecondMoment()], ids=str)
def test_the_type_may_change_within_the_window(uncertainty):
    model = net()
    optimizer = sgd(model, momentum=0.0)
    pruner = pw.Pruner(model, optimizer, uncertainty=uncertainty)
    snapshots = []
    for step in range(6):
        if step == 3:
            model.to(torch.float64)
        one_step(model, optimizer, step)
        snapshots.append(model[0].weight.detach().to(torch.float64, copy=True))
    if isinstance(uncertainty, pw.PseudoBootstrap):
        torch.testing.assert_close(
            pruner.sigma()["0.weight"].double(), torch.stack(snapshots).std(0), rtol=1e-4, atol=1e-8
        )
    pruner.prune(0.8)
    one_step(model, optimizer, 6)
    assert zeros_hold(model, pruner)


def test_detach_leaves_a_plain_model():
    model, optimizer, pruner = pruned()
    assert hooks_on(model, optimizer) > 0
    pruner.detach()
    assert hooks_on(model, optimizer) == 0
    assert zeros_hold(model, pruner)
    one_step(model, optimizer, 4)
    assert not zeros_hold(model, pruner)


@pytest.mark.parametrize("call", ["apply_", "detach"])
def test_a_detached_pruner_takes_hold_of_nothing(call):
    model, optimizer, pruner = pruned()
    pruner.detach()
    getattr(pruner, call)()
    assert hooks_on(model, optimizer) == 0


def test_a_detached_pruner_refuses_to_prune():
    _, _, pruner = pruned()
    pruner.detach()
    with pytest.raises(ValueError, match="detached"):
        pruner.prune(0.9)


def test_two_pruners_hold_side_by_side():
    model = net()
    optimizer = sgd(model)
    first = pw.Pruner(model, optimizer, criterion="magnitude", targets="0")
    second = pw.Pruner(model, optimizer, criterion="magnitude", targets="2")
    first.prune(0.5)
    second.prune(0.8)
    for step in range(3):
        one_step(model, optimizer, step)
        assert zeros_hold(model, first)
        assert zeros_hold(model, second)
    first.detach()
    one_step(model, optimizer, 3)
    assert not zeros_hold(model, first)
    assert zeros_hold(model, second)


def test_the_pruner_may_be_dropped():
    model, optimizer, pruner = pruned()
    masks = pruner.masks
    del pruner
    loss_of(model, 4).backward()
    optimizer.step()
    assert not any(minus_zero_or_worse(model.get_parameter(name), ~mask) for name, mask in masks.items())
