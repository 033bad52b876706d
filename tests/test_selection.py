import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prunewald.patterns import Element
from prunewald.selection import Ranked, Scores, _radix, counts_below, kth_smallest, smallest

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
    assert torch.equal(smallest(given_, count), reference(*given_, count))


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
    scores = Scores({n: t.score.numel() for n, t in tensors.items()}, tensors.__getitem__)
    joined = Ranked(*(torch.cat(column) for column in zip(*tensors.values(), strict=True)))
    count = data.draw(st.integers(0, joined.score.numel()))
    chosen = reference(*joined, count).split([t.score.numel() for t in tensors.values()])
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
