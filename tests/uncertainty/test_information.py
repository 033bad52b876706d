"""Inverses of information matrices in any units, and their rank by the precision of what they were made of."""

import pytest
import torch

from prunewald.uncertainty.information import BlockMatrices, Root

pytestmark = pytest.mark.usefixtures("one_thread")

DOUBLE, SINGLE = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps


def block(matrix, bend=None, eps=DOUBLE, mean=None, root=None):
    size = len(matrix)
    mean = torch.zeros(size, dtype=torch.float64) if mean is None else mean
    scores = torch.eye(size, dtype=torch.float64)
    return BlockMatrices(("a",), matrix, scores, mean, bend, samples=100, eps=eps, root=root)


def positive(size, rank, seed=0):
    rows = torch.randn(rank, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows.T @ rows


def test_no_unit_of_a_parameter_matters_to_the_inverse():
    matrix, units = positive(6, 40), 10.0 ** torch.arange(-9, 9, 3, dtype=torch.float64)
    plain = torch.linalg.inv(matrix)
    spectrum = block(matrix * units * units[:, None]).spectrum
    assert spectrum.rank == 6
    assert spectrum.condition == pytest.approx(block(matrix).spectrum.condition)
    inverse = spectrum.inverted("inverse")
    torch.testing.assert_close(inverse.whole() * units * units[:, None], plain, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(inverse.diagonal(), inverse.whole().diagonal())


@pytest.mark.parametrize("pieces", [[7], [1, 2, 4, 100, 200, 3], [300, 300]])
def test_a_root_is_that_of_the_sum_of_outer_products(pieces):
    rows = torch.randn(sum(pieces), 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    root = Root(12, rows.device)
    for piece in rows.split(pieces):
        root.add(piece)
    assert root.value().shape == (min(len(rows), 12), 12)
    torch.testing.assert_close(root.value().T @ root.value(), rows.T @ rows)


def test_an_inverse_by_the_root_loses_half_as_many_digits():
    small = 3e-6
    triangle = torch.tensor([[1.0, 1.0, 0.0], [0.0, small, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    rows = torch.tensor([[1.0, 1, 0], [1, -1, 0], [1, 1, 0], [1, -1, 0]], dtype=torch.float64) / 2 @ triangle
    noise = 1 + torch.rand(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    root = Root(3, rows.device)
    for share in noise / noise.square().sum().sqrt():
        root.add(rows * share)
    by_root = block(root.value().T @ root.value(), root=root.value()).spectrum.inverted("inverse")
    by_matrix = block(root.value().T @ root.value()).spectrum.inverted("inverse")
    exact = torch.tensor([1 + small**-2, small**-2], dtype=torch.float64)
    off = [float((found.diagonal() / exact - 1).abs().max()) for found in (by_root, by_matrix)]
    assert off[0] < 1e-10
    assert off[1] > 1e-8


def test_the_pseudo_inverse_is_that_of_the_matrix_in_its_own_units():
    units = torch.tensor([1.0, 1, 3, 0.2, 1, 10], dtype=torch.float64)
    matrix = positive(6, 4) * units * units[:, None]
    spectrum = block(matrix).spectrum
    assert (spectrum.rank, spectrum.condition) == (4, torch.inf)
    torch.testing.assert_close(spectrum.inverted("pseudo").whole(), torch.linalg.pinv(matrix, hermitian=True))
    assert spectrum.inverted("inverse").diagonal().isnan().all()


def test_damping_adds_a_share_of_the_diagonal():
    matrix = positive(6, 4)
    expected = torch.linalg.inv(matrix + 0.1 * torch.diag(matrix.diagonal()))
    torch.testing.assert_close(block(matrix).spectrum.inverted("damped", 0.1).whole(), expected)


@pytest.mark.parametrize(("eps", "rank"), [(DOUBLE, 6), (SINGLE, 5)])
def test_what_single_precision_cannot_tell_from_zero_is_no_rank(eps, rank):
    vectors = torch.linalg.qr(positive(6, 40)).Q
    values = torch.tensor([1.0, 1, 1, 1, 1, 1e-13], dtype=torch.float64)
    assert block((vectors * values) @ vectors.T, eps=eps).spectrum.rank == rank


def test_what_is_added_to_outer_products_is_only_as_good_as_derivatives_are():
    vectors = torch.linalg.qr(positive(6, 40)).Q
    values = torch.tensor([1.0, 1, 1, 1, 1, 1e-7], dtype=torch.float64)
    matrix = (vectors * values) @ vectors.T
    assert block(matrix, eps=SINGLE).spectrum.rank == 6
    assert block(matrix, bend=torch.zeros(6, 6), eps=SINGLE).spectrum.rank == 6
    assert block(matrix, bend=matrix, eps=SINGLE).spectrum.rank == 5
    assert block(matrix, bend=matrix).spectrum.rank == 6


def test_the_error_by_rounding_grows_with_the_condition():
    vectors = torch.linalg.qr(positive(6, 40)).Q
    values = torch.tensor([1.0, 1, 1, 1, 1, 1e-4], dtype=torch.float64)
    matrix = (vectors * values) @ vectors.T
    outer, bent = (block(matrix, bend=bend, eps=SINGLE) for bend in (None, matrix))
    assert outer.error == pytest.approx(SINGLE * outer.spectrum.condition**0.5, rel=1e-3)
    assert block(matrix).error == pytest.approx(DOUBLE * outer.spectrum.condition, rel=0.02)
    assert bent.error > 20 * outer.error
    assert block(positive(6, 4)).error == torch.inf


def test_parameters_without_information_do_not_touch_the_others():
    matrix = torch.zeros(8, 8, dtype=torch.float64)
    matrix[1:7, 1:7] = positive(6, 40)
    found = block(matrix)
    assert found.told.tolist() == [False, *[True] * 6, False]
    variance = found.full(found.spectrum.inverted("inverse").diagonal())
    torch.testing.assert_close(variance[1:7], torch.linalg.inv(matrix[1:7, 1:7]).diagonal())
    assert variance[[0, 7]].isinf().all()
    diagnosis = found.diagnosed(variance)
    assert (diagnosis.size, diagnosis.rank, diagnosis.untold, diagnosis.singular) == (8, 6, 2, False)


def test_no_information_at_all():
    found = block(torch.zeros(3, 3, dtype=torch.float64))
    variance = found.full(found.spectrum.inverted("inverse").diagonal())
    assert variance.isinf().all()
    assert (found.diagnosed(variance).rank, found.diagnosed(variance).untold) == (0, 3)


def test_half_precision_that_tells_nothing_apart_keeps_the_largest():
    found = block(positive(300, 400), eps=torch.finfo(torch.bfloat16).eps).spectrum
    assert 1 <= found.rank < 300


def test_information_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="about a has NaN.*look for NaN in inputs"):
        block(torch.full((2, 2), torch.nan, dtype=torch.float64)).spectrum  # noqa: B018


def test_the_mean_score_is_counted_in_its_standard_errors():
    mean = torch.tensor([0.1, -0.3], dtype=torch.float64)
    found = block(positive(2, 40), mean=mean)
    torch.testing.assert_close(found.z(), 10 * mean)
    assert found.diagnosed(torch.ones(2)).score == pytest.approx(5**0.5)
