"""The least squares of what is left, against raw data and closed forms."""

import pytest
import torch

from prunewald.refitting import solving
from prunewald.refitting.solving import Gram, best_ridge, error, solve


def data(n=200, width=12, rows=7, *, seed=0, kept=0.5):
    """Correlated inputs, targets of dense weights with noise, present weights and a mask."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator, dtype=torch.float64)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64) @ mix + 1.0
    dense = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    y = x @ dense.T + torch.randn(n, rows, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=generator) < kept
    return x, y, dense, mask


def reference(x, y, weight, mask, ridge, bias):
    """Each row by torch.linalg.lstsq on the raw data, with rows of its own for the ridge."""
    width = x.shape[1]
    strength = (ridge * x.square().sum(0).mean()).sqrt()
    found = torch.zeros_like(weight)
    for row, (target, keep) in enumerate(zip(y.T, mask[:, :width], strict=True)):
        at = keep.nonzero()[:, 0]
        raw = torch.cat([x[:, at], torch.ones(len(x), 1, dtype=x.dtype)], 1) if bias else x[:, at]
        pull = torch.zeros(len(at), raw.shape[1], dtype=x.dtype)
        pull[:, : len(at)] = strength * torch.eye(len(at))
        matrix = torch.cat([raw, pull])
        right = torch.cat([target, strength * weight[row, at]])
        solved = torch.linalg.lstsq(matrix, right.unsqueeze(1), driver="gelsd").solution[:, 0]
        found[row, at] = solved[: len(at)]
        if bias:
            found[row, -1] = solved[-1]
    return found


def with_bias(weight, mask):
    rows = len(weight)
    bias = torch.linspace(-1, 1, rows, dtype=weight.dtype).unsqueeze(1)
    return torch.cat([weight * mask, bias], 1), torch.cat([mask, torch.ones(rows, 1, dtype=torch.bool)], 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("kept", [0.1, 0.5, 1.0])
def test_against_least_squares_on_the_raw_data(bias, ridge, kept):
    x, y, dense, mask = data(kept=kept)
    weight, mask = with_bias(dense, mask) if bias else (dense * mask, mask)
    found = solve(Gram.of(x, y, bias=bias), weight, mask, ridge)
    torch.testing.assert_close(found, reference(x, y, weight, mask, ridge, bias), rtol=1e-6, atol=1e-7)


def test_rows_that_share_a_mask_are_solved_together_and_as_alone():
    x, y, dense, mask = data(width=80, rows=20, n=300)
    mask[5:15] = mask[5]
    mask[0] = False
    found = solve(Gram.of(x, y), dense * mask, mask, 0.0)
    torch.testing.assert_close(found, reference(x, y, dense * mask, mask, 0.0, False), rtol=1e-6, atol=1e-7)


def test_the_error_is_that_of_the_raw_data():
    x, y, dense, mask = data()
    gram = Gram.of(x[:50], y[:50]) + Gram.of(x[50:], y[50:])
    torch.testing.assert_close(error(gram, dense * mask), (y - x @ (dense * mask).T).square().sum(0))
    assert gram.count == 200
    assert bool((error(Gram.of(x, x @ dense.T), dense) >= 0).all())


def test_dense_targets_without_a_ridge_are_the_restricted_estimate_of_optimal_brain_surgeon():
    x, _, dense, mask = data()
    found = solve(Gram.of(x, x @ dense.T), dense * mask, mask, 0.0)
    inverse = torch.linalg.inv(x.T @ x)
    for row, keep in enumerate(mask):
        gone = (~keep).nonzero()[:, 0]
        step = inverse[:, gone] @ torch.linalg.solve(inverse[gone][:, gone], dense[row, gone])
        torch.testing.assert_close(found[row], dense[row] - step, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bias", [False, True])
def test_without_a_ridge_fewer_examples_than_inputs_give_the_solution_next_to_the_present_one(bias):
    x, y, dense, mask = data(n=5, width=20, kept=0.8)
    weight, mask = with_bias(dense, mask) if bias else (dense * mask, mask)
    found = solve(Gram.of(x, y, bias=bias), weight, mask, 0.0)
    near = reference(x, y, weight, mask, 1e-9, bias)
    torch.testing.assert_close(found, near, rtol=1e-4, atol=1e-4)


def test_inputs_that_are_always_zero_leave_their_weights_as_they_are():
    x, y, dense, mask = data()
    x[:, 3] = 0
    mask[:, 3] = True
    for ridge in (0.0, 1e-2):
        found = solve(Gram.of(x, y), dense * mask, mask, ridge)
        assert torch.equal(found[:, 3], dense[:, 3])


def test_zeros_stay_and_no_row_is_worse_by_its_own_measure():
    x, y, dense, mask = data(n=30, width=64, rows=40)
    weight = (dense * mask).bfloat16()  # so coarse that rounding undoes what a fit gains
    gram = Gram.of(x, x @ dense.T + 1e-3 * y)
    for ridge in (0.0, 1e-2, 1.0, 100.0):
        found = solve(gram, weight, mask, ridge)
        penalty = ridge * float(gram.inputs.diagonal().mean()) * (found.double() - weight.double()).square().sum(1)
        assert found.dtype == torch.bfloat16
        assert not found[~mask].any()
        assert bool((error(gram, found) + penalty <= error(gram, weight) * (1 + 1e-9)).all())


def test_sums_in_float32_do():
    x, y, dense, mask = data(n=8, width=20)
    exact = Gram.of(x, y)
    rough = Gram(*(sums.float() for sums in exact.tensors()), exact.count)
    found = solve(rough, dense * mask, mask, 0.0)
    assert float(error(exact, found).sum()) < 0.01 * float(error(exact, dense * mask).sum())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value):
    x, y, dense, mask = data()
    x[0, 0] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        solve(Gram.of(x, y), dense * mask, mask, 0.1)


def test_shapes_that_do_not_fit_are_refused():
    x, y, dense, mask = data()
    with pytest.raises(ValueError, match=r"mask \(7, 11\).*7 rows over 12 inputs"):
        solve(Gram.of(x, y), dense, mask[:, 1:], 0.1)
    with pytest.raises(ValueError, match="ridge=-1"):
        solve(Gram.of(x, y), dense, mask, -1)
    with pytest.raises(ValueError, match="over 13 inputs with the bias and .* over 12 inputs"):
        Gram.of(x, y, bias=True) + Gram.of(x, y)
    with pytest.raises(ValueError, match="no examples"):
        solve(Gram.of(x[:0], y[:0], bias=True), *with_bias(dense, mask), 0.1)


def test_the_ridge_is_chosen_on_examples_that_were_held_back():
    x, y, dense, mask = data(n=60, width=30, kept=0.9)
    weight = dense * mask
    fit, held = Gram.of(x[:20], y[:20]), Gram.of(x[20:], y[20:])
    ridge, found, before, after = best_ridge(fit, held, weight, mask, (1e-4, 1e-2, 1.0))
    errors = {one: float(error(held, solve(fit, weight, mask, one)).sum()) for one in (1e-4, 1e-2, 1.0)}
    assert ridge == min(errors, key=errors.get)
    assert after == errors[ridge] < before == float(error(held, weight).sum())
    assert torch.equal(found, solve(fit, weight, mask, ridge))


def test_where_no_ridge_helps_on_the_examples_held_back_the_weights_stay():
    x, y, dense, mask = data()
    wrong = Gram.of(x, -y)
    ridge, found, before, after = best_ridge(wrong, Gram.of(x, y), dense * mask, mask)
    assert (ridge, after) == (None, before)
    assert torch.equal(found, dense * mask)


def test_many_rows_have_their_ridge_chosen_by_some_of_them_and_are_all_solved(monkeypatch):
    x, y, dense, mask = data(n=60, width=30, rows=50, kept=0.9)
    weight, fit, held = dense * mask, Gram.of(x[:20], y[:20]), Gram.of(x[20:], y[20:])
    monkeypatch.setattr(solving, "_JUDGES", 20)
    ridge, found, before, after = best_ridge(fit, held, weight, mask, (1e-4, 1e-2, 1.0))
    some = torch.arange(0, 50, 3)
    judged = {
        one: float(error(held.rows(some), solve(fit, weight, mask, one)[some]).sum()) for one in (1e-4, 1e-2, 1.0)
    }
    assert ridge == min(judged, key=judged.get)
    assert torch.equal(found, solve(fit, weight, mask, ridge))
    assert (before, after) == (float(error(held, weight).sum()), float(error(held, found).sum()))


def test_the_solver_is_chosen_by_what_a_factorisation_of_each_row_takes(monkeypatch):
    alive = torch.ones(40, 100, dtype=torch.bool)
    assert solving._cheap(alive)  # one factorisation for all
    alive &= torch.rand(40, 100) < 0.8
    assert solving._cheap(alive)  # no time worth speaking of
    monkeypatch.setattr(solving, "_ANYWAY", 0)
    assert not solving._cheap(alive)
    assert solving._cheap(alive & (torch.rand(40, 100) < 0.2))
