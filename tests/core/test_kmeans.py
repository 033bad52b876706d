import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prunewald.core.kmeans import kmeans_1d

floats = st.floats(-1e6, 1e6, width=32)


def error(values: torch.Tensor, book: torch.Tensor, codes: torch.Tensor) -> float:
    return float((book[codes.long()].double() - values.double()).pow(2).sum())


@settings(max_examples=200, deadline=None)
@given(st.lists(floats, min_size=1, max_size=60), st.integers(2, 12))
def test_what_k_means_promises(numbers: list[float], size: int) -> None:
    values = torch.tensor(numbers)
    book, codes = kmeans_1d(values, size)
    assert len(book) <= size
    assert book.dtype == values.dtype
    assert codes.dtype == torch.uint8
    assert codes.shape == values.shape
    assert torch.equal(book, book.unique())
    assert sorted(set(codes.tolist())) == list(range(len(book)))  # each entry is in use
    if len(set(numbers)) <= size:
        assert torch.equal(book[codes.long()], values)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-500, 500), min_size=1, max_size=60), st.integers(2, 8))
def test_a_fixed_point_of_lloyd(numbers: list[int], size: int) -> None:
    """Each centre is the mean of its values, and no value is nearer to another centre."""
    values = torch.tensor(numbers, dtype=torch.float64)
    book, codes = kmeans_1d(values, size)
    means = torch.stack([values[codes == i].mean() for i in range(len(book))])
    torch.testing.assert_close(book, means)
    distance = (values[:, None] - book).abs()
    own = distance.gather(1, codes.long()[:, None])[:, 0]
    assert (own <= distance.min(1).values + 1e-9).all()


def best(values: list[float], size: int) -> float:
    """The least squared error of all cuts of the sorted values, slowly."""
    ordered = sorted(values)

    def cost(part: list[float]) -> float:
        mean = sum(part) / len(part)
        return sum((x - mean) ** 2 for x in part)

    if size == 1 or len(ordered) == 1:
        return cost(ordered)
    cuts = range(1, len(ordered))
    return min(cost(ordered), *(best(ordered[:cut], size - 1) + cost(ordered[cut:]) for cut in cuts))


def test_near_the_best_there_is() -> None:
    torch.manual_seed(0)
    ratios = []
    for _ in range(30):
        values = torch.randn(14, dtype=torch.float64)
        ratios.append(error(values, *kmeans_1d(values, 3)) / best(values.tolist(), 3))
    assert min(ratios) > 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.3


def test_centres_of_no_use_find_one() -> None:
    """Pruned weights leave a hole in the middle, where evenly spread centres would stand for nothing."""
    torch.manual_seed(0)
    values = torch.randn(20_000)
    values = values[values.abs() > 1]
    for size in (16, 32, 256):
        assert len(kmeans_1d(values, size)[0]) == size


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_and_shapes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.randn(30, 40).to(dtype).T
    book, codes = kmeans_1d(values, 32)
    assert book.dtype == dtype
    assert codes.shape == values.shape
    assert error(values, book, codes) < 0.01 * float(values.double().pow(2).sum())
    assert kmeans_1d(values[:0], 4)[0].shape == (0,)


def test_the_order_of_the_values_means_nothing() -> None:
    torch.manual_seed(0)
    values = torch.randn(5000)
    turn = torch.randperm(5000)
    book, codes = kmeans_1d(values, 32)
    again, others = kmeans_1d(values[turn], 32)
    assert torch.equal(book, again)
    assert torch.equal(codes[turn], others)


def test_what_it_does_not_take() -> None:
    with pytest.raises(ValueError, match="size=1.*2 to 256"):
        kmeans_1d(torch.ones(3), 1)
    for size in (257, 2.5, True):
        with pytest.raises(ValueError, match=f"size={size}.*2 to 256"):
            kmeans_1d(torch.ones(3), size)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not torch.int64"):
        kmeans_1d(torch.ones(3).long(), 4)
    with pytest.raises(ValueError, match="infinite or NaN"):
        kmeans_1d(torch.tensor([1, float("nan")]), 4)
