import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.core.allocation import ERK, LAMP, Global, Layer, Row, apportion, lamp, layer_count
from prunewald.core.ranking import KnownScores, Ranked
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


# ---- lamp --------------------------------------------------------------------------------------------------------


def lamp_by_hand(scores: list[float]) -> list[float]:
    """W[u]² / sum of W[v]² over v >= u, with W in ascending order."""
    order = sorted(scores)
    return [w * w / math.fsum(v * v for v in order[u:]) for u, w in enumerate(order)]


def counts_by_hand(tensors: dict[str, Ranked], keep: int) -> dict[str, int]:
    """Positive scores by LAMP, then by score; below them the others, by score, then by |w|."""
    order = []
    for i, (name, t) in enumerate(tensors.items()):
        positive = sorted(s for s in t.score.tolist() if s > 0)
        order += [(1, value, s, i, name) for value, s in zip(lamp_by_hand(positive), positive, strict=True)]
        pairs = zip(t.score.tolist(), t.weight.tolist(), strict=True)
        order += [(0, s, abs(w), i, name) for s, w in pairs if s <= 0]
    kept = [name for *_, name in sorted(order)[len(order) - keep :]]
    return {name: kept.count(name) for name in tensors}


@st.composite
def layers(draw, values):
    dtype = draw(dtypes)
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    tables = [draw(st.lists(values, min_size=n, max_size=n)) for n in sizes]
    return {
        str(i): Ranked(torch.tensor(t, dtype=dtype), torch.tensor(t, dtype=dtype).abs()) for i, t in enumerate(tables)
    }


@given(layers(st.floats(0.0, 100.0, width=32, allow_subnormal=False)), shares)
def test_lamp_with_magnitude_is_the_papers(tensors, sparsity):
    scores = KnownScores(tensors)
    counts = LAMP()(scores, sparsity)
    total = sum(scores.sizes.values())
    assert sum(counts.values()) == layer_count(total, sparsity)
    for t in tensors.values():
        expected = lamp_by_hand([w for w in t.score.tolist() if w > 0])
        assert torch.allclose(lamp(t).score, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@given(layers(st.sampled_from([0.5, 1.0, 2.0, 4.0, -1.0, -2.0])), shares)
def test_lamp_counts_are_the_head_of_the_common_order(tensors, sparsity):
    total = sum(t.score.numel() for t in tensors.values())
    assert LAMP()(KnownScores(tensors), sparsity) == counts_by_hand(tensors, layer_count(total, sparsity))


@given(layers(st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.5, 3e38, math.inf, -1.0, -3e38, -math.inf])), shares, shares)
def test_lamp_never_gives_back_at_a_higher_sparsity(tensors, one, other):
    scores = KnownScores(tensors)
    more, fewer = LAMP()(scores, min(one, other)), LAMP()(scores, max(one, other))
    assert all(fewer[name] <= more[name] for name in tensors)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1e-30, 1e30, math.inf, -1.0, -math.inf]), min_size=1, max_size=20), dtypes
)
def test_lamp_scores_ascend_and_are_numbers(values, dtype):
    score = torch.tensor(values, dtype=dtype)
    found = lamp(Ranked(score, score.abs().clamp(max=1.0))).score
    assert len(found) == sum(value > 0 for value in values)
    assert not found.isnan().any()
    assert (found.diff() >= 0).all()
    assert (found[-1:] == 1.0).all()


def test_lamp_by_hand():
    big, small = torch.tensor([[30.0, 40.0], [0.0, 10.0]]), torch.tensor([0.3, 0.3])
    tensors = {"big": Ranked(big, big), "small": Ranked(small, small)}
    assert lamp(tensors["big"]).score.tolist() == pytest.approx([100 / 2600, 900 / 2500, 1.0])
    assert lamp(tensors["small"]).score.tolist() == pytest.approx([0.5, 1.0])
    assert LAMP()(KnownScores(tensors), 0.5) == {"big": 1, "small": 2}
    assert LAMP()(KnownScores(tensors), 0.1) == {"big": 3, "small": 2}  # a zero goes first
    assert Global()(KnownScores(tensors), 0.5) == {"big": 3, "small": 0}


def test_lamp_tells_the_weights_of_a_large_tensor_apart():
    """In float32 a sum of ones stands still at 2^24, and 1 / n and 1 / (n + 1) become one number long before."""
    n = 1 << 20
    found = lamp(Ranked(torch.ones(n), torch.ones(n))).score
    assert torch.equal(found, 1 / torch.arange(n, 0, -1, dtype=torch.float64))
    assert (found.diff() > 0).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_lamp_is_the_same_on_every_device():
    score = torch.randint(-4, 5, (3, 1 << 14), generator=torch.Generator().manual_seed(0)).float() * 0.5
    tensors = {str(i): Ranked(row * 2**i, row.abs()) for i, row in enumerate(score)}
    moved = {name: Ranked(t.score.cuda(), t.weight.cuda()) for name, t in tensors.items()}
    for sparsity in (0.1, 0.5, 0.9, 0.999):
        counts = LAMP()(KnownScores(moved), sparsity)
        assert counts == LAMP()(KnownScores(tensors), sparsity)
        assert sum(counts.values()) == layer_count(score.numel(), sparsity)
