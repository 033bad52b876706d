"""Shared values are Han, Mao & Dally's trained quantisation, to the last bit, with any optimizer."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import prunewald as pw
from prunewald.quantisation import SharedValues
from tests.quantisation.helpers import (
    CLOSURES,
    NAMES,
    OPTIMIZERS,
    Han,
    assert_tied,
    gradients,
    make,
    pruned,
)
from tests.training import closure_step, loss_of, net, one_step

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("history", [0, 7])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in CLOSURES])
def test_it_is_hans_algorithm_to_the_last_bit(name, reduce, history):
    model, optimizer, pruner = pruned(name, steps=history)
    shared = SharedValues(pruner, 5, reduce=reduce)
    han = Han(name, model, shared, optimizer, reduce)
    for step in range(20, 45):
        han.step(step)
        (closure_step if step % 3 == 0 else one_step)(model, optimizer, step)
        for n, weight in han.weights().items():
            assert torch.equal(model.get_parameter(n), weight), (step, n)
        assert_tied(shared, 5)
    for n in NAMES:
        alive, param = pruner.masks[n], model.get_parameter(n)
        for key, state in optimizer.state[param].items():
            own = han.optimizers[0].state[han.codebooks[n]][key]
            if isinstance(state, torch.Tensor) and state.shape == param.shape:
                torch.testing.assert_close(state[alive], own[shared.codes()[n][alive]], rtol=1e-12, atol=1e-15)


def test_a_cluster_has_the_mean_of_its_members_and_the_rest_is_as_it_was():
    model, _, pruner = pruned()
    before = copy.deepcopy(model)
    shared = SharedValues(pruner, 4)
    for n, codes in shared.codes().items():
        old = before.get_parameter(n).detach()
        for code, value in enumerate(shared.codebooks()[n]):
            torch.testing.assert_close(value, old[codes == code].mean())
        nearest = (old[..., None] - shared.codebooks()[n]).abs().argmin(-1)
        assert torch.equal(nearest[codes >= 0], codes[codes >= 0])
        assert len(model.get_parameter(n).unique()) == 5
    assert_tied(shared, 4)
    for i in (0, 2):
        assert torch.equal(model[i].bias, before[i].bias)


def test_accumulated_gradients_are_shared_once():
    runs = []
    for parts in (1, 4):
        model, optimizer, pruner = pruned("momentum")
        shared = SharedValues(pruner, 4)
        for step in range(5):
            optimizer.zero_grad()
            for _ in range(parts):
                (loss_of(model, step) / parts).backward()
            optimizer.step()
        runs.append(shared.codebooks())
    torch.testing.assert_close(*runs, rtol=1e-12, atol=1e-14)


def test_what_looks_at_gradients_before_the_step_sees_each_weights_own():
    model, optimizer, pruner = pruned()
    SharedValues(pruner, 4)
    loss_of(model, 0).backward()
    grad = model[0].weight.grad
    assert len(grad[pruner.masks["0.weight"]].unique()) == int(pruner.masks["0.weight"].sum())
    optimizer.step()
    assert len(grad[pruner.masks["0.weight"]].unique()) == 4


@pytest.mark.parametrize("name", CLOSURES)
def test_lbfgs_is_lbfgs_with_the_mean_gradient(name):
    model, optimizer, pruner = pruned(name)
    shared = SharedValues(pruner, 4, reduce="mean")
    codes = shared.codes()
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    own = make(name, weights.values())
    for step in range(8):

        def closure(step: int = step) -> float:
            loss, grads = gradients(model, weights, step)
            for n, weight in weights.items():
                weight.grad = grads[n]
                for code in range(-1, 4) if n in NAMES else ():
                    members = codes[n] == code
                    weight.grad[members] = grads[n][members].mean() if code >= 0 else 0.0
            return loss

        own.step(closure)
        closure_step(model, optimizer, step)
        for n, weight in weights.items():
            torch.testing.assert_close(model.get_parameter(n), weight, rtol=1e-5, atol=1e-7)
        assert_tied(shared, 4)


# ---- what is pruned later -------------------------------------------------------------------------------------------


def test_weights_that_come_back_belong_to_no_cluster():
    model, optimizer, pruner = pruned()
    shared = SharedValues(pruner, 4)
    pruner.set_masks({n: torch.ones_like(mask) for n, mask in pruner.masks.items()})
    loss_of(model, 0).backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'0.weight' came back.*detach\(\)"):
        optimizer.step()
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())
    shared.detach()
    assert_tied(SharedValues(pruner, 4), 4)
    optimizer.step()


# ---- targets --------------------------------------------------------------------------------------------------------


def test_sizes_by_target():
    model, optimizer, pruner = pruned(targets=["0.weight[:4]", "0.weight[4:]", "2.*"])
    shared = SharedValues(pruner, {"0.weight[:4]": 2, "2": 6})
    sizes = {"0.weight[:4]": 2, "2.weight": 6}
    assert shared.codebooks().keys() == sizes.keys()
    for step in range(5):
        one_step(model, optimizer, step)
        assert_tied(shared, sizes)
    rest = model[0].weight[4:].detach()
    assert len(rest[rest != 0].unique()) == 12


def test_a_target_of_few_values_is_taken_as_it_is():
    model, optimizer, pruner = pruned("adam", {"0": 0.5, "2": 0.9}, steps=5)  # 3 of 32 survive in "2"
    before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict()["state"])
    shared = SharedValues(pruner, 8)
    assert len(shared.codebooks()["2.weight"]) == 3
    assert torch.equal(model[2].weight, before[2].weight)
    assert torch.equal(optimizer.state[model[2].weight]["exp_avg"], state[2]["exp_avg"])
    assert model[0].weight not in optimizer.state


def test_a_target_without_survivors():
    model, optimizer, pruner = pruned("sgd", {"0": 0.5}, scope="global")
    masks = pruner.masks
    masks["2.weight"][:] = False
    pruner.set_masks(masks)
    shared = SharedValues(pruner, 4)
    one_step(model, optimizer, 0)
    assert_tied(shared, 4)
    assert len(shared.codebooks()["2.weight"]) == 0


def test_frozen_parameters_share_values_too():
    model = net().double()
    model[0].weight.requires_grad_(False)
    optimizer = make("sgd", model[2].parameters())
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.5)
    shared = SharedValues(pruner, 4)
    before = shared.codebooks()["0.weight"]
    one_step(model, optimizer, 0)
    assert_tied(shared, 4)
    assert torch.equal(shared.codebooks()["0.weight"], before)


def test_channels_last():
    results = []
    for order in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.LazyLinear(2))
        x = torch.randn(4, 3, 6, 6)
        model(x)
        model.to(memory_format=order)
        _, optimizer, pruner = pruned("adam", model=model)
        shared = SharedValues(pruner, 6)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            assert_tied(shared, 6)
        results.append(shared.codebooks())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 9),
    size=st.integers(2, 12),
    sparsity=st.floats(0, 0.95),
    name=st.sampled_from(["momentum", "adam", "rmsprop"]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_any_shape(rows, cols, size, sparsity, name, dtype, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(cols, rows), nn.Tanh(), nn.Linear(rows, 2)).to(dtype)
    _, optimizer, pruner = pruned(name, sparsity, model=model)
    shared = SharedValues(pruner, size)
    codes = shared.codes()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, cols, dtype=dtype)).square().mean().backward()
        optimizer.step()
        assert_tied(shared, size)
    assert all(torch.equal(code, codes[n]) for n, code in shared.codes().items())
