"""Conjugate gradients against the factorisation of each row."""

import pytest
import torch

from prunewald.refitting import exact, iterating, solving
from prunewald.refitting.solving import Gram, error, solve
from tests.refitting.helpers import inputs, pruned


@pytest.mark.parametrize("kind", ["relu", "correlated"])
@pytest.mark.parametrize("share", [0.5, 0.2, 0.1, 0.01, "2:4"])
@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
def test_the_error_is_within_two_percent_of_the_exact_one(kind, share, ridge):
    x = inputs(kind, 600, 160)
    dense, mask = pruned(x, 40, share)
    gram = Gram.of(x, x @ dense.T)
    found, least = (solve(gram, dense * mask, mask, ridge, exactly=exactly) for exactly in (False, True))
    assert not found[~mask].any()
    assert float(error(gram, found).sum()) <= 1.02 * float(error(gram, least).sum())
    assert bool((error(gram, found) <= error(gram, dense * mask) * (1 + 1e-9)).all())


def test_with_a_bias_and_noise_and_rows_of_very_different_size():
    x = inputs("relu", 600, 160) + 1.0
    dense, mask = pruned(x, 40, "2:4")
    size = torch.logspace(-3, 3, 40, dtype=torch.float64).unsqueeze(1)
    y = (x @ dense.T + 0.1 * torch.randn(600, 40, dtype=torch.float64)) * size.T
    gram = Gram.of(x, y, bias=True)
    weight = torch.cat([dense * mask, torch.zeros(40, 1, dtype=torch.float64)], 1) * size
    mask = torch.cat([mask, torch.ones(40, 1, dtype=torch.bool)], 1)
    found, least = (solve(gram, weight, mask, 1e-3, exactly=exactly) for exactly in (False, True))
    assert bool((error(gram, found) <= 1.05 * error(gram, least)).all())


def test_rows_without_survivors_and_inputs_that_are_all_zero_do_no_harm():
    x = inputs("relu", 300, 64)
    dense, mask = pruned(x, 8, 0.5)
    mask[3] = False
    found = solve(Gram.of(x, x @ dense.T), dense * mask, mask, 0.0, exactly=False)
    assert not found[3].any()
    assert torch.equal(found[:, ::17], (dense * mask)[:, ::17])
    weight = solve(Gram.of(0 * x, x @ dense.T), dense * mask, mask, 1e-3, exactly=False)
    assert torch.equal(weight, dense * mask)


def test_without_a_ridge_and_with_too_few_examples_nothing_gets_worse():
    x = inputs("correlated", 40, 160)
    dense, mask = pruned(x, 40, 0.5)
    gram = Gram.of(x, x @ dense.T)
    found = solve(gram, dense * mask, mask, 0.0, exactly=False)
    assert bool((error(gram, found) <= error(gram, dense * mask)).all())
    assert float(error(gram, found).sum()) < 0.05 * float(error(gram, dense * mask).sum())


def problem(rows=40):
    x = inputs("relu", 600, 160)
    dense, mask = pruned(x, rows, 0.5)
    gram = Gram.of(x, x @ dense.T)
    free = mask & (gram.inputs.diagonal() > 0)
    residual = (gram.cross - (dense * mask) @ gram.inputs) * free
    ridge = 1e-3 * float(gram.inputs.diagonal().mean())
    return iterating.Steps(gram.inputs), (residual, free, ridge, error(gram, dense * mask))


def test_where_single_precision_does_not_do_double_precision_takes_over(monkeypatch):
    system, rows = problem()
    expected, steps, calls = system.solved(*rows), iterating._steps, []

    def coarse(matrix, *rest):
        calls.append(matrix.dtype)
        if matrix.dtype == torch.float32:  # as if its products were rounded to few bits
            matrix = matrix.to(torch.float8_e4m3fn).float()
        return steps(matrix, *rest)

    monkeypatch.setattr(iterating, "_steps", coarse)
    found = system.solved(*rows)
    assert calls == [torch.float32, torch.float64]
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.05 * float(expected.abs().max()))


def test_a_start_at_the_solution_is_left_within_a_few_steps():
    system, (residual, free, ridge, before) = problem()
    least = exact.by_rows(system.inputs, residual, free, ridge, 0.0)
    found = system.solved(residual, free, ridge, before, least)
    torch.testing.assert_close(found, least, rtol=1e-3, atol=1e-4 * float(least.abs().max()))


def test_the_factor_model_is_inverted_under_the_mask_of_each_row():
    system, (residual, free, _, _) = problem(rows=5)
    loadings, own = system.loadings.double(), system.own.double()
    solved = iterating._Model(loadings, own, free).solved(residual)
    whole = loadings @ loadings.T + own.diag()
    met = system.inputs.diagonal() > 0
    assert bool(((whole.diagonal()[met] - 1).abs() < 0.01).all())
    for row, alive in enumerate(free):
        at = alive.nonzero()[:, 0]
        torch.testing.assert_close(solved[row, at], torch.linalg.solve(whole[at][:, at], residual[row, at]))
        assert not solved[row, ~alive].any()


def test_rows_are_taken_in_pieces_that_fit_in_memory(monkeypatch):
    x = inputs("relu", 600, 160)
    dense, mask = pruned(x, 40, 0.5)
    gram, calls, steps = Gram.of(x, x @ dense.T), [], iterating._steps
    whole = solve(gram, dense * mask, mask, 1e-3, exactly=False)
    monkeypatch.setattr(iterating, "_steps", lambda *args: calls.append(len(args[2])) or steps(*args))
    monkeypatch.setattr(solving, "_ROOM", 15 * (80 * 160 + 12 * 64**2))
    pieces = solve(gram, dense * mask, mask, 1e-3, exactly=False)
    assert calls == [15, 15, 10]
    torch.testing.assert_close(pieces, whole, rtol=0.1, atol=0.02 * float(whole.abs().max()))
