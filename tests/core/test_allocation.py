import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.core.allocation import ERK, Layer, Row, apportion, layer_count
from tests.core.helpers import Unscored

shapes = st.lists(
    st.sampled_from([(1, 1), (3, 4), (10, 30), (64, 3), (5,), (8, 2, 3, 3), (40, 40), ()]), min_size=1, max_size=6
).map(lambda found: {str(i): shape for i, shape in enumerate(found)})
shares = st.floats(0, 1, exclude_max=True)
dtypes = st.sampled_from([torch.float32, torch.float64])


# ---- row ---------------------------------------------------------------------------------------------------------


@given(shapes, shares)
def test_every_row_keeps_the_same_share(shapes, sparsity):
    scores = Unscored(shapes)
    for name, counts in Row()(scores, sparsity).items():
        rows = shapes[name][0] if len(shapes[name]) > 1 else 1
        assert counts.tolist() == [layer_count(math.prod(shapes[name]) // rows, sparsity)] * rows
        assert counts.dtype == torch.int64
    assert Layer()(scores, sparsity) == {n: layer_count(s, sparsity) for n, s in scores.sizes.items()}


# ---- erk ---------------------------------------------------------------------------------------------------------


def erk_by_hand(shapes, total: float) -> dict[str, float]:
    """Densities as in RigL's code: those above 1 become dense one by one, and epsilon is computed anew."""
    dense: set[str] = set()
    while True:
        raw = {n: sum(s) / math.prod(s) for n, s in shapes.items() if n not in dense}
        rest = total - sum(math.prod(shapes[n]) for n in dense)
        epsilon = rest / sum(math.prod(shapes[n]) * raw[n] for n in raw)
        highest = max(raw, key=lambda n: raw[n])
        if epsilon * raw[highest] <= 1 + 1e-12:
            return {n: 1.0 if n in dense else epsilon * raw[n] for n in shapes}
        dense.add(highest)


LENET = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.9, 0.97, 0.995])
def test_erk_is_the_formula_to_the_nearest_weight(sparsity):
    counts = ERK()(Unscored(LENET), sparsity)
    total = sum(map(math.prod, LENET.values()))
    assert sum(counts.values()) == total - round(sparsity * total)
    for name, density in erk_by_hand(LENET, sum(counts.values())).items():
        assert abs(counts[name] - density * math.prod(LENET[name])) < 1


@given(shapes, shares)
def test_erk_counts_add_up_and_fit(shapes, sparsity):
    scores = Unscored(shapes)
    counts = ERK()(scores, sparsity)
    assert sum(counts.values()) == max(layer_count(sum(scores.sizes.values()), sparsity), len(shapes))
    assert all(1 <= count <= scores.sizes[name] for name, count in counts.items())


@given(shapes, shares, shares)
def test_erk_never_gives_back_at_a_higher_sparsity(shapes, one, other):
    scores = Unscored(shapes)
    more, fewer = ERK()(scores, min(one, other)), ERK()(scores, max(one, other))
    assert all(fewer[name] <= more[name] for name in shapes)


def webster_by_hand(shares: dict[str, int], sizes: dict[str, int], total: int) -> dict[str, int]:
    """One weight after the other, to the tensor whose share is farthest above what it would have had."""
    counts = dict.fromkeys(shares, 1)
    while sum(counts.values()) < total:
        open_ = [n for n in shares if counts[n] < sizes[n]]
        # The highest share / (count + 1/2), compared without division.
        best = open_[0]
        for name in open_[1:]:
            if shares[name] * (2 * counts[best] + 1) > shares[best] * (2 * counts[name] + 1):
                best = name
        counts[best] += 1
    return counts


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=6), st.data())
def test_apportion_is_websters_rule(table, data):
    shares = {str(i): share for i, (share, _) in enumerate(table)}
    sizes = {str(i): size for i, (_, size) in enumerate(table)}
    total = data.draw(st.integers(len(table), sum(sizes.values())))
    assert apportion(shares, sizes, total) == webster_by_hand(shares, sizes, total)


def test_largest_remainders_would_give_back():
    """The Alabama paradox: of 10 the third share gets 2 by largest remainders, and of 11 only 1."""
    shares, sizes = {"a": 6, "b": 6, "c": 2}, dict.fromkeys("abc", 100)

    def largest_remainders(total):
        exact = {n: total * s / 14 for n, s in shares.items()}
        floors = {n: int(x) for n, x in exact.items()}
        behind = sorted(shares, key=lambda n: floors[n] - exact[n])[: total - sum(floors.values())]
        return {n: floors[n] + (n in behind) for n in shares}

    assert [largest_remainders(total)["c"] for total in (10, 11)] == [2, 1]
    assert apportion(shares, sizes, 10)["c"] <= apportion(shares, sizes, 11)["c"]
