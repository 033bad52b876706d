import pytest
import torch

from prunewald.util import tensors
from prunewald.util.tensors import (
    CACHED,
    accumulator,
    count_true,
    dense,
    fingerprint,
    fresh,
    in_pieces,
    pieces,
    places,
    zero_,
)

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


def test_pieces_are_views_in_order(monkeypatch):
    tensor = torch.arange(7.0, requires_grad=True)
    monkeypatch.setattr(tensors, "CACHED", 3)
    cut = list(pieces(tensor))
    assert [piece.tolist() for piece in cut] == [[0, 1, 2], [3, 4, 5], [6]]
    assert cut[0].data_ptr() == tensor.data_ptr()
    assert [piece.tolist() for piece in pieces(torch.arange(4).view(2, 2).t())] == [[0, 2, 1], [3]]


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, CACHED + 1)])
def test_in_pieces_a_function_gives_the_same(shape):
    torch.manual_seed(0)
    one, other = torch.randn(shape), torch.rand(shape)
    assert in_pieces(torch.add, one, other).equal(one + other)
    assert in_pieces(torch.lt, one, other).equal(one < other)
    assert in_pieces(torch.add, one.t(), other.t()).equal((one + other).t()) if len(shape) == 2 else True


def test_fresh_memory_has_the_shape_and_the_type_asked_for():
    for shape in ((), (3, 4)):
        made = fresh(torch.empty(shape), torch.float64)
        assert (made.shape, made.dtype) == (torch.Size(shape), torch.float64)
        assert made.fill_(2.0).eq(2.0).all()


def test_what_is_true_is_counted_and_found():
    mask = torch.rand(300, 7, generator=torch.Generator().manual_seed(0)) < 0.3
    assert count_true(mask) == count_true(mask.t()) == int(mask.sum())
    assert count_true(torch.ones((), dtype=torch.bool).expand(4, 5)) == 20
    assert count_true(torch.zeros((), dtype=torch.bool).expand(4, 5)) == 0
    assert count_true(mask[:0]) == 0
    assert places(mask.view(-1)).equal(mask.view(-1).nonzero().view(-1))


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
