"""Cholesky factorisations by batches, against torch's own solver one row at a time."""

import pytest
import torch

from prunewald.refitting import exact


def problem(width=90, rows=30, kept=0.5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, width, generator=generator, dtype=torch.float64)
    alive = torch.rand(rows, width, generator=generator) < kept
    return x.T @ x, torch.randn(rows, width, generator=generator, dtype=torch.float64) * alive, alive


def one_by_one(inputs, residual, alive, ridge):
    change = torch.zeros_like(residual)
    for row, keep in enumerate(alive):
        at = keep.nonzero()[:, 0]
        change[row, at] = torch.linalg.solve(inputs[at][:, at] + ridge * torch.eye(len(at)), residual[row, at])
    return change


@pytest.mark.parametrize("kept", [0.02, 0.1, 0.5, 0.9, 1.0])
def test_rows_one_by_one(kept):
    inputs, residual, alive = problem(kept=kept)
    torch.testing.assert_close(
        exact.by_rows(inputs, residual, alive, 3.0, 0.0), one_by_one(inputs, residual, alive, 3.0)
    )


def test_rows_of_any_number_of_survivors_in_pieces(monkeypatch):
    inputs, residual, alive = problem(rows=90)
    alive &= torch.arange(90) <= torch.arange(90).unsqueeze(1)  # from none to half
    monkeypatch.setitem(exact._PIECE, "cpu", 8 * 30 * 30 * 4)
    found = exact.by_rows(inputs, residual * alive, alive, 0.0, 0.0)
    torch.testing.assert_close(found, one_by_one(inputs, residual * alive, alive, 0.0))


def test_rows_of_one_mask_have_one_factorisation(monkeypatch):
    inputs, residual, alive = problem(kept=0.9)
    alive[:20] = alive[0]
    alive[20:24] = alive[25]
    sizes, factor = [], exact._factor
    monkeypatch.setattr(exact, "_factor", lambda system: sizes.append(len(system)) or factor(system))
    found = exact.by_rows(inputs, residual * alive, alive, 1.0, 0.0)
    torch.testing.assert_close(found, one_by_one(inputs, residual * alive, alive, 1.0))
    assert sum(sizes) == 2 + 5
    kept = alive.sum(1).double()
    assert exact.cost(alive) == float(kept[0] ** 3 + kept[25] ** 3 + kept[[24, *range(26, 30)]].pow(3).sum())


def test_a_matrix_that_rounding_made_indefinite_is_solved_as_nearly_as_it_can_be():
    inputs, residual, alive = problem(kept=1.0)
    inputs -= torch.linalg.eigvalsh(inputs)[0] * (1 + 1e-9) * torch.eye(90)
    residual = residual @ inputs
    found = exact.by_rows(inputs, residual, alive, 0.0, 0.0)
    torch.testing.assert_close(found @ inputs, residual, rtol=1e-4, atol=1e-4 * float(residual.abs().max()))
