"""Linear values are the straight-through estimator, to the last bit; a scale loses as little as can be."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import prunewald as pw
from prunewald.quantisation import LinearValues
from prunewald.quantisation.linear import fit_scale
from tests.quantisation.helpers import CLOSURES, NAMES, OPTIMIZERS, StraightThrough, assert_linear, pruned
from tests.training import closure_step, loss_of, net, one_step, train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("per", ["target", "row"])
@pytest.mark.parametrize(
    ("name", "bits"),
    # LBFGS without a line search does not live with two bits, here or in the transcription.
    [(name, bits) for name in OPTIMIZERS for bits in (2, 4, 8) if (name, bits) != ("lbfgs", 2)],
)
def test_it_is_the_straight_through_estimator_to_the_last_bit(name, bits, per):
    model, optimizer, pruner = pruned(name)
    full = {n: model.get_parameter(n).detach().clone() for n in NAMES}
    linear = LinearValues(pruner, bits, per=per)
    literal = StraightThrough(name, model, full, linear)
    codes = linear.codes()
    for step in range(25):
        literal.step(step)
        (closure_step if name in CLOSURES or step % 3 == 0 else one_step)(model, optimizer, step)
        for n, seen in literal.seen().items():
            assert torch.equal(model.get_parameter(n), seen), (step, n)
        assert_linear(linear, bits)
    for n, values in linear.state_dict()["full"].items():
        assert torch.equal(values, literal.W[n].detach())
        assert bits == 2 or not torch.equal(linear.codes()[n], codes[n])


def test_small_survivors_become_zero_and_come_back():
    model, optimizer, pruner = pruned("adam", 0.2)
    linear = LinearValues(pruner, 2)
    assert linear.sparsity > pruner.sparsity + 0.1
    assert "pruned" in repr(linear)
    seen = []
    for step in range(60):
        one_step(model, optimizer, step)
        seen.append(linear.codes()["0.weight"])
    at_zero = pruner.masks["0.weight"] & (seen[0] == 0)
    assert any((code[at_zero] != 0).any() for code in seen)


def test_a_scale_stays():
    model, optimizer, pruner = pruned("momentum")
    linear = LinearValues(pruner, 4)
    before = linear.scales()
    train(model, optimizer, 5)
    assert all(torch.equal(scale, before[n]) for n, scale in linear.scales().items())


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    cols=st.integers(1, 40),
    bits=st.integers(2, 8),
    by_row=st.booleans(),
    sparsity=st.floats(0, 1),
    seed=st.integers(0, 999),
)
def test_a_scale_is_the_best_of_a_hundred(rows, cols, bits, by_row, sparsity, seed):
    torch.manual_seed(seed)
    weight = torch.randn(rows, cols, dtype=torch.float64) * (torch.rand(rows, cols) >= sparsity)
    levels = 2 ** (bits - 1) - 1
    found = fit_scale(weight, levels, by_row=by_row)
    assert found.shape == ((rows, 1) if by_row else ())
    assert (found > 0).all()
    for row, scale in zip(weight if by_row else [weight], found.flatten().tolist(), strict=True):

        def error(scale: float, row: torch.Tensor = row) -> float:
            whole = [max(-levels, min(levels, round(w / scale))) for w in row.flatten().tolist()]
            return math.fsum((w - scale * n) ** 2 for w, n in zip(row.flatten().tolist(), whole, strict=True))

        top = float(row.abs().max())
        tried = [error(top * share / 100 / levels) for share in range(1, 101)] if top else [0.0]
        assert error(scale) == pytest.approx(min(tried), rel=1e-6, abs=1e-12)


def test_an_outlier_is_clipped_where_bits_are_few():
    torch.manual_seed(0)
    weight = torch.cat([torch.randn(1000), torch.tensor([12.0])])
    assert float(fit_scale(weight, 7)) * 7 < 6
    assert float(fit_scale(weight, 127)) * 127 > 10


# ---- what changes the weights between steps -------------------------------------------------------------------------


def test_what_was_loaded_since_counts():
    model, optimizer, pruner = pruned()
    linear = LinearValues(pruner, 8)
    one_step(model, optimizer, 0)
    other = net(1).double()
    model[0].load_state_dict(other[0].state_dict())
    kept = linear.state_dict()["full"]["2.weight"]
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="'0.weight'.*set to zero"):  # of what was loaded, only what is alive counts
        loss_of(model, 1).backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    full = linear.state_dict()["full"]
    alive = pruner.masks["0.weight"]
    assert torch.equal(full["0.weight"][alive], other[0].weight[alive])
    assert torch.equal(full["2.weight"], kept)
    assert_linear(linear, 8)


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_an_error_in_a_closure_leaves_the_weights_rounded(kind):
    model = net()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.5)
    linear = LinearValues(pruner, 4)
    closure_step(model, optimizer, 0)
    before = copy.deepcopy(linear.state_dict())

    def fail() -> float:
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        optimizer.step(fail)
    assert_linear(linear, 4)
    assert all(torch.equal(value, before["full"][n]) for n, value in linear.state_dict()["full"].items())
    closure_step(model, optimizer, 1)
    assert_linear(linear, 4)


def test_an_error_in_the_step_itself_is_put_right_by_the_next():
    model, optimizer, pruner = pruned("momentum", steps=2)
    linear = LinearValues(pruner, 4)
    buffer = optimizer.state[model[0].weight]["momentum_buffer"]
    optimizer.state[model[0].weight]["momentum_buffer"] = buffer[:1, :1].expand(3, 3)
    with pytest.raises(RuntimeError):
        one_step(model, optimizer, 2)
    optimizer.state[model[0].weight]["momentum_buffer"] = buffer
    one_step(model, optimizer, 3)
    assert_linear(linear, 4)


def test_to_other_types_in_between():
    model, optimizer, pruner = pruned(model=net())
    linear = LinearValues(pruner, 3)
    one_step(model, optimizer, 0)
    before = linear.state_dict()["full"]["0.weight"].double()
    model.double()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    one_step(model, optimizer, 1)
    assert torch.equal(linear.state_dict()["full"]["0.weight"], before)
    assert_linear(linear, 3)


def test_slices_and_convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    _, optimizer, pruner = pruned("adam", model=model, targets=["0", "2.weight[:2]"])
    linear = LinearValues(pruner, 4, per="row")
    assert {n: tuple(s.shape) for n, s in linear.scales().items()} == {
        "0.weight": (4, 1, 1, 1),
        "2.weight[:2]": (2, 1),
    }
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 2, 6, 6)).square().mean().backward()
        optimizer.step()
        assert_linear(linear, 4)
