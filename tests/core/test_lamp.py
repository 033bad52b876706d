"""LAMP's counts, against the definition spelled out, and on tensors of which only a sample is sorted."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.core import lamp
from prunewald.core.allocation import LAMP, Global, layer_count
from prunewald.core.lamp import Sample, Samples, lamp_kept
from prunewald.core.ranking import KnownScores, Ranked
from prunewald.util.tensors import pieces

dtypes = st.sampled_from([torch.float32, torch.float64])
shares = st.floats(0.0, 1.0, exclude_max=True)
of_scores = LAMP(of="score")


def lamp_by_hand(scores: list[float]) -> list[float]:
    """W[u]² / sum of W[v]² over v >= u, with W in ascending order."""
    order = sorted(scores)
    return [w * w / math.fsum(v * v for v in order[u:]) for u, w in enumerate(order)]


def at_least(tensors: dict[str, Ranked], keep: int) -> int:
    """What is kept where `keep` is asked for: the greatest of each tensor that has a positive one, at the least."""
    return max(keep, sum(bool((t.score > 0).any()) for t in tensors.values()))


def counts_by_hand(tensors: dict[str, Ranked], keep: int) -> dict[str, int]:
    """Positive scores by LAMP, then by score; below them the others, by score, then by |w|."""
    order, keep = [], at_least(tensors, keep)
    for i, (name, t) in enumerate(tensors.items()):
        positive = sorted(s for s in t.score.tolist() if s > 0)
        order += [(1, value, s, i, name) for value, s in zip(lamp_by_hand(positive), positive, strict=True)]
        pairs = zip(t.score.tolist(), t.weight.tolist(), strict=True)
        order += [(0, s, abs(w), i, name) for s, w in pairs if s <= 0]
    kept = [name for *_, name in sorted(order)[len(order) - keep :]]
    return {name: kept.count(name) for name in tensors}


def scores_of(values: torch.Tensor) -> torch.Tensor:
    """The LAMP scores of all positive values of a tensor."""
    return Sample.of(partial(pieces, values.clamp(min=0)), values.numel()).scores


@st.composite
def layers(draw, values):
    dtype = draw(dtypes)
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    tables = [draw(st.lists(values, min_size=n, max_size=n)) for n in sizes]
    return {
        str(i): Ranked(torch.tensor(t, dtype=dtype), torch.tensor(t, dtype=dtype).abs()) for i, t in enumerate(tables)
    }


@given(layers(st.floats(0.0, 100.0, width=32, allow_subnormal=False)), shares)
def test_with_magnitudes_it_is_the_papers(tensors, sparsity):
    scores = KnownScores(tensors)
    counts = LAMP()(scores, sparsity)
    assert sum(counts.values()) == at_least(tensors, layer_count(sum(scores.sizes.values()), sparsity))
    assert all(counts[name] >= bool((t.score > 0).any()) for name, t in tensors.items())
    assert counts == of_scores(scores, sparsity)
    for t in tensors.values():
        expected = lamp_by_hand([w for w in t.score.tolist() if w > 0])
        assert torch.allclose(scores_of(t.score), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@given(layers(st.sampled_from([0.5, 1.0, 2.0, 4.0, -1.0, -2.0])), shares)
def test_counts_are_the_head_of_the_common_order(tensors, sparsity):
    total = sum(t.score.numel() for t in tensors.values())
    assert of_scores(KnownScores(tensors), sparsity) == counts_by_hand(tensors, layer_count(total, sparsity))


@given(layers(st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.5, 3e38, math.inf, -1.0, -3e38, -math.inf])), shares, shares)
def test_a_higher_sparsity_never_gives_back(tensors, one, other):
    scores = KnownScores(tensors)
    more, fewer = of_scores(scores, min(one, other)), of_scores(scores, max(one, other))
    assert all(fewer[name] <= more[name] for name in tensors)


@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1e-30, 1e30, math.inf, -1.0, -math.inf]), min_size=1, max_size=20), dtypes
)
def test_scores_ascend_and_are_numbers(values, dtype):
    found = scores_of(torch.tensor(values, dtype=dtype))
    assert len(found) == sum(value > 0 for value in values)
    assert not found.isnan().any()
    assert (found.diff() >= 0).all()
    assert (found[-1:] == 1.0).all()


def test_by_hand():
    big, small = torch.tensor([[30.0, 40.0], [0.0, 10.0]]), torch.tensor([0.3, 0.3])
    tensors = {"big": Ranked(big, big), "small": Ranked(small, small)}
    assert scores_of(big).tolist() == pytest.approx([100 / 2600, 900 / 2500, 1.0])
    assert scores_of(small).tolist() == pytest.approx([0.5, 1.0])
    assert LAMP()(KnownScores(tensors), 0.5) == {"big": 1, "small": 2}
    assert LAMP()(KnownScores(tensors), 0.1) == {"big": 3, "small": 2}  # a zero goes first
    assert Global()(KnownScores(tensors), 0.5) == {"big": 3, "small": 0}


def test_counts_go_by_magnitudes_whatever_the_scores():
    weight = {"a": torch.tensor([4.0, 3.0, 2.0, 1.0]), "b": torch.tensor([8.0, 6.0, 4.0, 2.0])}
    heavy = {"a": torch.tensor([1e9, 1e-9, 1e-9, 1e-9]), "b": torch.tensor([1.0, 1.0, 1.0, 1.0])}
    scores = KnownScores({name: Ranked(heavy[name], weight[name]) for name in weight})
    assert LAMP()(scores, 0.5) == {"a": 2, "b": 2}
    assert of_scores(scores, 0.5) == {"a": 1, "b": 3}


def test_no_tensor_loses_its_last_weight_and_none_is_brought_back():
    sizes = {"a": 40, "b": 3, "c": 1, "gone": 5}
    weight = {name: torch.rand(n, generator=torch.Generator().manual_seed(n)) + 0.1 for name, n in sizes.items()}
    weight["gone"] *= 0
    weight["a"][:10] = 0
    scores = KnownScores({name: Ranked(w, w) for name, w in weight.items()})
    assert LAMP()(scores, 0.999) == {"a": 1, "b": 1, "c": 1, "gone": 0}
    living = {name: int((w > 0).sum()) for name, w in weight.items()}
    assert LAMP()(scores, 15 / 49) == living
    assert all(LAMP()(scores, 0.5)[name] <= n for name, n in living.items())


def test_of_is_one_of_two():
    with pytest.raises(ValueError, match="of='taste'.*'magnitude', 'score'"):
        LAMP(of="taste")


def test_the_weights_of_a_large_tensor_are_told_apart():
    """In float32 1 / n and 1 / (n + 1) become one number long before a sum of ones stands still, at 2^24."""
    n = 1 << 16
    found = scores_of(torch.ones(n))
    assert torch.equal(found, 1 / torch.arange(n, 0, -1, dtype=torch.float64))
    assert (found.diff() > 0).all()


# ---- large tensors, of which a sample is sorted --------------------------------------------------------------------


def whole(values: dict[str, torch.Tensor], keep: int) -> dict[str, int] | None:
    """The same, with every tensor sorted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lamp, "_WHOLE", 1 << 30)
        return sampled(values, keep)


def sampled(values: dict[str, torch.Tensor], keep: int) -> dict[str, int] | None:
    each = {name: partial(pieces, v) for name, v in values.items()}
    return lamp_kept(Samples.of(each, {name: v.numel() for name, v in values.items()}), each, keep)


def drawn(kind: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    n = 200_000
    if kind == "normal":
        return {"a": torch.randn(n).abs(), "b": 0.01 * torch.randn(n // 2).abs(), "small": torch.rand(50)}
    if kind == "heavy":
        return {"a": torch.randn(n).abs().pow(-8), "b": torch.randn(n).abs(), "small": torch.rand(50)}
    if kind == "ties":
        return {"a": torch.randint(0, 4, (n,)).float(), "b": torch.randint(0, 3, (n,)).double().float() * 0.3}
    if kind == "zeros":
        return {"a": torch.randn(n).abs() * (torch.rand(n) > 0.9), "b": torch.randn(n).abs()}
    stripes = torch.rand(n) * 1e-3
    stripes[::13] = 1.0  # what an evenly spaced sample sees most of, or nothing of
    return {"a": stripes, "b": torch.randn(n).abs()}


@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "zeros", "stripes"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.95, 0.999])
def test_a_sample_finds_the_same_counts(kind, share):
    values = drawn(kind)
    keep = round((1 - share) * sum(v.numel() for v in values.values()))
    assert sampled(values, keep) == whole(values, keep)


def test_a_sample_that_misleads_is_made_good():
    """Every sampled value is tiny: the cut is looked for at the wrong place, and found all the same."""
    n = 200_000
    step = -(-n // lamp._SAMPLE)
    values = {"a": torch.rand(n, generator=torch.Generator().manual_seed(1)), "b": torch.linspace(0.01, 1, n)}
    values["a"][::step] *= 1e-6
    assert sampled(values, 100_000) == whole(values, 100_000)


def test_what_does_not_depend_on_the_sparsity_is_found_once(monkeypatch):
    values = drawn("normal")
    scores = KnownScores({name: Ranked(v, v) for name, v in values.items()})
    found = []
    monkeypatch.setattr(Sample, "of", staticmethod(lambda *args, of=Sample.of: found.append(1) or of(*args)))
    counts = {share: LAMP()(scores, share) for share in (0.2, 0.5, 0.9)}
    assert len(found) == len(values)
    for share, kept in counts.items():
        assert LAMP()(KnownScores({name: Ranked(v, v) for name, v in values.items()}), share) == kept


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_is_the_same_on_every_device():
    score = torch.randint(-4, 5, (3, 1 << 17), generator=torch.Generator().manual_seed(0)).float() * 0.5
    tensors = {str(i): Ranked(row * 2**i, row.abs()) for i, row in enumerate(score)}
    moved = {name: Ranked(t.score.cuda(), t.weight.cuda()) for name, t in tensors.items()}
    for sparsity in (0.1, 0.5, 0.9, 0.999):
        counts = LAMP()(KnownScores(moved), sparsity)
        assert counts == LAMP()(KnownScores(tensors), sparsity)
        assert sum(counts.values()) == layer_count(score.numel(), sparsity)
