import pytest
import torch

from prunewald.util.tensors import accumulator, dense, fingerprint, pieces, zero_

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_zero_gives_plus_zero_even_from_nan_and_leaves_the_others_alone(dtype):
    values = [-1.0, torch.nan, -0.0, -torch.inf, -2.5, -0.0, torch.nan]
    tensor = torch.tensor(values, dtype=dtype)
    zero_(tensor, torch.tensor([False, False, False, False, True, True, True]))
    assert tensor[:4].tolist() == [0.0] * 4
    assert not tensor[:4].signbit().any()
    assert tensor[4] == -2.5
    assert tensor[5].signbit()
    assert tensor[6].isnan()


def test_zero_reaches_a_parameter_and_a_strided_view():
    weight = torch.nn.Parameter(torch.ones(3, 4).t())
    zero_(weight, torch.eye(4, 3) > 0)
    assert torch.equal(weight.detach(), torch.eye(4, 3))


def test_pieces_are_views_in_order():
    tensor = torch.arange(100_000.0, requires_grad=True)
    cut = list(pieces(tensor))
    assert len(cut) > 1
    assert torch.equal(torch.cat(cut), tensor.detach())
    assert cut[0].data_ptr() == tensor.data_ptr()
    turned = tensor.detach().view(400, 250).t()
    assert torch.equal(torch.cat(list(pieces(turned))), turned.flatten())


def test_a_sparse_gradient_gets_all_its_entries():
    grad = torch.eye(3)
    assert dense(grad) is grad
    assert torch.equal(dense(grad.to_sparse()), grad)


def test_sums_are_kept_in_at_least_float32():
    found = [accumulator(torch.zeros(1, dtype=dtype)) for dtype in FLOATS]
    assert found == [torch.float64, torch.float32, torch.float32, torch.float32]


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_fingerprint_changes_with_the_smallest_step_and_not_by_itself(dtype):
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    tensor[1, 2] = torch.nan
    before = fingerprint(tensor)
    assert fingerprint(tensor.clone()) == before
    tensor[3, 4] = torch.nextafter(tensor[3, 4], torch.tensor(torch.inf, dtype=dtype))
    assert fingerprint(tensor) != before
