import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prunewald.core.kth import _radix, kth_smallest, sample
from prunewald.core.patterns import Element
from prunewald.core.ranking import (
    KnownScores,
    Ranked,
    counts_below,
    in_order,
    smallest,
    smallest_by_row,
    zeros_last,
)
from tests.core.helpers import Unscored

pytestmark = pytest.mark.usefixtures("one_thread")

# Few distinct values, so that ties of score and of magnitude are the rule.
numbers = st.sampled_from([0.0, -0.0, 1e-45, 0.5, 0.5000001, 1.0, -1.0, -2.5, 3e38, float("inf"), float("-inf")])
finite = st.sampled_from([0.0, -0.0, 0.25, -0.25, 1.0, -3.0])
tables = st.lists(st.tuples(numbers, finite), min_size=1, max_size=40)
dtypes = st.sampled_from([torch.float32, torch.float64])


def reference(score: Tensor, weight: Tensor, count: int) -> Tensor:
    """Sort everything by score, then magnitude, then position; take the first."""
    order = np.lexsort((np.arange(len(score)), weight.abs().numpy(), score.numpy() + 0.0))
    chosen = torch.zeros(len(score), dtype=torch.bool)
    chosen[torch.from_numpy(order[:count].copy())] = True
    return chosen


def ranked(table: list[tuple[float, float]], dtype: torch.dtype = torch.float32) -> Ranked:
    score, weight = zip(*table, strict=True)
    return Ranked(torch.tensor(score, dtype=dtype), torch.tensor(weight, dtype=dtype))


@given(tables, dtypes, st.data())
def test_smallest_is_the_head_of_the_sorted_order(table, dtype, data):
    given_ = ranked(table, dtype)
    count = data.draw(st.integers(0, len(table)))
    assert torch.equal(smallest(given_, count), reference(given_.score, given_.weight, count))


@given(tables, st.data())
def test_one_more_pruned_only_adds(table, data):
    given_ = ranked(table)
    count = data.draw(st.integers(0, len(table) - 1))
    fewer, more = smallest(given_, count), smallest(given_, count + 1)
    assert (more >= fewer).all()
    assert int(more.sum()) == count + 1


@given(st.lists(tables, min_size=1, max_size=5), st.data())
def test_counts_over_many_tensors_agree_with_one_long_tensor(parts, data):
    tensors = {str(i): ranked(table) for i, table in enumerate(parts)}
    scores = KnownScores(tensors)
    joined = Ranked(torch.cat([t.score for t in tensors.values()]), torch.cat([t.weight for t in tensors.values()]))
    count = data.draw(st.integers(0, joined.score.numel()))
    chosen = reference(joined.score, joined.weight, count).split([t.score.numel() for t in tensors.values()])
    assert counts_below(scores, count) == {n: int(c.sum()) for n, c in zip(tensors, chosen, strict=True)}


@given(st.lists(numbers, min_size=1, max_size=60), dtypes, st.data())
def test_kth_smallest_equals_sort(values, dtype, data):
    tensor = torch.tensor(values, dtype=dtype)
    k = data.draw(st.integers(1, len(values)))
    for way in (kth_smallest, _radix):
        value, rest, equals = way(lambda: tensor.split(7), k)
        assert value == tensor.sort().values[k - 1]
        assert equals == int((tensor == value).sum())
        assert rest == k - int((tensor < value).sum())


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_any_bit_pattern_is_ordered(seed):
    bits = torch.randint(-(2**31), 2**31, (5000,), generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    values = bits.view(torch.float32)
    values = values[values.isfinite()]
    k = len(values) // 3
    assert kth_smallest(lambda: [values], k)[0] == values.kthvalue(k).values


@pytest.mark.slow
def test_the_selection_is_exact_past_2_to_24():
    """float32 counts saturate at 2^24 and torch.quantile refuses: neither may happen here."""
    n = (1 << 24) + 1000
    weight = torch.ones(n)
    weight[5::1000] = 2.0
    low = int((weight == 1).sum())
    chosen = smallest(Ranked(weight, weight), (1 << 24) + 3 - (n - low))
    assert int(torch.count_nonzero(chosen)) == (1 << 24) + 3 - (n - low)
    assert not chosen[weight == 2].any()
    # Ties go by position: nothing after the last chosen place is chosen, nothing tied before it is left.
    tied = chosen[weight == 1]
    assert tied[: int(tied.sum())].all()


@pytest.mark.parametrize("keep", [0, 1, 7, 12])
def test_element_keeps_the_highest(keep):
    score = torch.arange(12.0).reshape(3, 4)
    mask = Element()(Ranked(score, score), keep)
    assert torch.equal(mask, score >= 12 - keep)


def test_a_non_contiguous_tensor_is_ordered_by_its_own_positions():
    score = torch.zeros(4, 3).t()
    assert torch.equal(smallest(Ranked(score, score), 5).reshape(-1), torch.arange(12) < 5)


@given(st.integers(1, 6), st.integers(1, 7), dtypes, st.data())
def test_rows_are_ordered_each_by_itself(rows, cols, dtype, data):
    table = data.draw(st.lists(st.tuples(numbers, finite), min_size=rows * cols, max_size=rows * cols))
    flat = ranked(table, dtype)
    given_ = Ranked(flat.score.view(rows, cols), flat.weight.view(rows, cols))
    counts = torch.tensor(data.draw(st.lists(st.integers(0, cols), min_size=rows, max_size=rows)))
    expected = torch.stack([reference(s, w, int(c)) for s, w, c in zip(*given_[:2], counts, strict=True)])
    assert torch.equal(smallest_by_row(given_, counts), expected)
    assert torch.equal(smallest(given_, counts), expected)


def test_rows_are_sorted_in_chunks(monkeypatch):
    score = torch.rand(7, 2, 5, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([0, 3, 10, 1, 2, 9, 4])
    whole = smallest_by_row(Ranked(score, score), counts)
    monkeypatch.setattr("prunewald.core.ranking._SORTED", 20)
    assert torch.equal(smallest_by_row(Ranked(score, score), counts), whole)
    assert torch.equal(whole.flatten(1).sum(1), counts)


@given(st.integers(1, 30), st.integers(1, 8), dtypes, st.data())
@settings(max_examples=100)
def test_short_rows_are_ordered_without_sorting(rows, cols, dtype, data):
    table = data.draw(st.lists(st.tuples(numbers, finite), min_size=rows * cols, max_size=rows * cols))
    flat = ranked(table, dtype)
    counts = torch.tensor(data.draw(st.lists(st.integers(0, cols), min_size=rows, max_size=rows)))
    chosen = smallest_by_row(Ranked(flat.score.view(rows, cols), flat.weight.view(rows, cols)), counts)
    for at, count in enumerate(counts.tolist()):
        own = slice(at * cols, (at + 1) * cols)
        assert torch.equal(chosen[at], reference(flat.score[own], flat.weight[own], count))


def test_a_vector_is_one_row_and_a_row_is_all_of_an_index():
    vector = torch.tensor([3.0, 1.0, 2.0])
    assert smallest_by_row(Ranked(vector, vector), torch.tensor([2])).tolist() == [False, True, True]
    turned = torch.zeros(4, 3).t()
    assert smallest_by_row(Ranked(turned, turned), torch.tensor([1, 0, 2])).sum(1).tolist() == [1, 0, 2]


def test_as_many_counts_as_rows():
    with pytest.raises(ValueError, match=r"shape \(2,\).*shape \(3, 4\).* 3 rows"):
        smallest_by_row(Ranked(torch.zeros(3, 4), torch.zeros(3, 4)), torch.tensor([1, 1]))


@given(tables, dtypes)
def test_in_order_is_the_sorted_order(table, dtype):
    given_ = ranked(table, dtype)
    key = [(s + 0.0, abs(w), i) for i, (s, w) in enumerate(zip(*(t.tolist() for t in given_[:2]), strict=True))]
    assert in_order(given_).tolist() == [i for *_, i in sorted(key)]


def test_scores_know_shapes_and_sizes_without_being_computed():
    scores = Unscored({"a": (2, 3), "b": (4,), "c": ()})
    assert (scores.shapes, scores.sizes) == ({"a": (2, 3), "b": (4,), "c": ()}, {"a": 6, "b": 4, "c": 1})
    assert list(scores) == ["a", "b", "c"]
    assert len(scores) == 3
    assert scores.only("b").shapes == {"b": (4,)}


def test_one_tensor_of_several_is_that_tensor():
    known = {name: ranked([(1.0, 0.25), (0.5, -3.0)]) for name in "ab"}
    one = KnownScores(known).only("b")
    assert dict(one) == {"b": known["b"]}
    assert one.weight("b") is known["b"].weight


def test_what_is_pruned_ranks_last_and_then_what_is_zero():
    score, weight = torch.tensor([-5.0, 3.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 1.0, -1.0])
    alive = torch.tensor([True, True, False, True])
    before = score.clone()
    ordered = zeros_last(score, weight, alive)
    assert ordered.argsort().tolist() == [2, 1, 0, 3]
    assert torch.equal(score, before)


def test_scores_whose_zeros_are_last_already_are_not_copied():
    score, weight = torch.tensor([0.0, 3.0]), torch.tensor([-0.0, 1.0])
    assert zeros_last(score, weight, None) is score
    assert zeros_last(score, weight.flip(0), None).tolist() == [0.0, torch.finfo(torch.float32).min]


def test_by_magnitude_keeps_what_is_pruned_below():
    given_ = Ranked(torch.zeros(4), torch.tensor([3.0, -2.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.bool))
    assert given_.by_magnitude(None).score.tolist() == [3.0, 2.0, 0.0, 1.0]
    assert given_.by_magnitude(torch.tensor([False, True, True, True])).score.argsort().tolist() == [0, 2, 3, 1]


# ---- large tensors, of which what is near the cut is picked out ----------------------------------------------------

KINDS = ["normal", "ties", "sorted", "stripes", "dead", "infinite", "one value"]


def large(kind: str, size: int = 300_000) -> Ranked:
    torch.manual_seed(0)
    weight = torch.randn(size)
    score = weight.abs()
    if kind == "ties":
        score = (weight * 3).round().abs()
    elif kind == "sorted":
        score = score.sort().values
    elif kind == "stripes":
        score[::61] = 7.0  # what an evenly spaced sample sees alone
    elif kind == "dead":
        score = torch.where(torch.rand(size) < 0.5, score - 3e38, score)
    elif kind == "infinite":
        score[torch.rand(size) < 0.3] = -torch.inf
        score[torch.rand(size) < 0.2] = torch.inf
    elif kind == "one value":
        score.fill_(0.5)
    return Ranked(score, weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.00001, 0.1, 0.5, 0.9, 0.99999])
def test_of_a_large_tensor_it_is_the_head_of_the_sorted_order(kind, share):
    given_ = large(kind)
    count = round(share * given_.score.numel())
    expected = reference(given_.score, given_.weight, count)
    assert torch.equal(smallest(given_, count), expected)
    value, rest, equals = kth_smallest(lambda: given_.score.split(30_000), count)
    assert (float(value), rest, equals) == tuple(map(float, _radix(lambda: given_.score.split(30_000), count)))
    parts = given_.score.split(100_000), given_.weight.split(100_000)
    tensors = KnownScores({str(i): Ranked(*part) for i, part in enumerate(zip(*parts, strict=True))})
    each = expected.split(100_000)
    assert counts_below(tensors, count) == {name: int(part.sum()) for name, part in zip(tensors, each, strict=True)}


def test_of_many_small_tensors_a_sample_is_evenly_spaced():
    """One of each would tell of the small ones only."""
    torch.manual_seed(0)
    parts = [torch.rand(20) for _ in range(10_000)] + [10 + torch.rand(100_000)]
    some, total = sample(parts)
    assert total == 300_000
    assert abs(float((some < 5).float().mean()) - 2 / 3) < 0.01
    count = 150_000
    value, _, _ = kth_smallest(lambda: parts, count)
    assert float(value) == float(torch.cat(parts).kthvalue(count).values)


def test_a_large_matrix_in_another_order_of_memory_is_ranked_by_position():
    given_ = large("ties", 300_000)
    turned = Ranked(given_.score.view(300, 1000).t(), given_.weight.view(300, 1000).t())
    flat = Ranked(turned.score.reshape(-1), turned.weight.reshape(-1))
    assert torch.equal(smallest(turned, 123_456).reshape(-1), reference(flat.score, flat.weight, 123_456))
