import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prunewald.core.criteria import dead_first
from prunewald.core.patterns import Block, Element, Filter, KeepNOfM, by_layout
from prunewald.core.ranking import Ranked
from prunewald.model.layouts import Layout

# Few values, all of them sums of powers of two: ties are the rule, and every sum of squares is exact.
LOWEST = torch.finfo(torch.float32).min
numbers = st.sampled_from([0.0, 0.5, 0.5, 1.0, 1.5, 3.0, -1.0, LOWEST, -math.inf, math.inf])
weights = st.sampled_from([0.0, -0.0, 0.25, -0.25, 1.0, -3.0])
GROUP_SCORES = ("wald", "mean", "l1")


@st.composite
def ranked(draw, shapes):
    shape = draw(shapes)
    size = math.prod(shape)
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))

    def tensor(values, dtype):
        return torch.tensor(draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype).view(shape)

    dead = tensor(st.booleans(), torch.bool) if draw(st.booleans()) else None
    return Ranked(tensor(numbers, dtype), tensor(weights, dtype), dead)


def key(given_: Ranked, place: tuple[int, ...]):
    """The library's order of single weights: by score, ties by |w|, then by position."""
    return given_.score[place].item() + 0.0, abs(given_.weight[place].item()), place


def mask_of(shape, kept) -> Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    for place in kept:
        mask[place] = True
    return mask


# ---- n of m ------------------------------------------------------------------------------------------------------


def n_of_m_by_hand(part: KeepNOfM, given_: Ranked, keep: int) -> Tensor:
    places = list(product(*map(range, given_.score.shape)))
    groups: dict[Any, list[Any]] = {}
    for place in places:
        group = (*place[: part.dim], place[part.dim] // part.m, *place[part.dim + 1 :])
        groups.setdefault(group, []).append(place)
    candidates = []
    for members in groups.values():
        candidates += sorted(members, key=lambda place: key(given_, place))[: part.m - part.n]
    gone = sorted(candidates, key=lambda place: key(given_, place))[: len(places) - keep]
    return mask_of(given_.score.shape, set(places) - set(gone))


matrices = st.sampled_from([(1, 4), (3, 8), (2, 12), (2, 4, 3), (2, 4, 1, 2), (1, 8, 2)])


@given(ranked(matrices), st.integers(1, 3), st.data())
def test_n_of_m_is_the_definition_at_every_count(given_, n, data):
    part = KeepNOfM(n, 4)
    size = given_.score.numel()
    keep = data.draw(st.integers(size * n // 4, size))
    mask = part(given_, keep)
    assert int(mask.sum()) == keep
    assert torch.equal(mask, n_of_m_by_hand(part, given_, keep))


@given(ranked(st.sampled_from([(4, 3), (8, 2, 2), (4, 1, 3, 1)])), st.data())
def test_n_of_m_along_another_dimension(given_, data):
    size = given_.score.numel()
    keep = data.draw(st.integers(size // 4, size))
    part = KeepNOfM(n=1, m=4, dim=0)
    assert torch.equal(part(given_, keep), n_of_m_by_hand(part, given_, keep))


@given(ranked(matrices), st.data())
def test_n_of_m_with_a_count_a_row_treats_rows_as_tensors(given_, data):
    rows, size = len(given_.score), given_.score[0].numel()
    keep = torch.tensor(data.draw(st.lists(st.integers(size // 2, size), min_size=rows, max_size=rows)))
    each = [KeepNOfM()(Ranked(given_.score[i : i + 1], given_.weight[i : i + 1]), int(keep[i])) for i in range(rows)]
    assert torch.equal(KeepNOfM()(given_, keep), torch.cat(each))


@given(ranked(matrices), st.data())
def test_n_of_m_comes_nearer_step_by_step(given_, data):
    size = given_.score.numel()
    keep = data.draw(st.integers(size // 2, size - 1))
    assert (KeepNOfM()(given_, keep) <= KeepNOfM()(given_, keep + 1)).all()


def test_two_of_four_input_channels_of_a_convolution():
    score = torch.rand(6, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    mask = KeepNOfM()(Ranked(score, score), score.numel() // 2)
    assert (mask.view(6, 2, 4, 3, 3).sum(2) == 2).all()
    assert KeepNOfM().sparsity == 0.5
    assert KeepNOfM(1, 8).sparsity == 0.875


def test_what_is_pruned_already_is_among_the_candidates():
    score = torch.rand(8, 16, generator=torch.Generator().manual_seed(0))
    first = KeepNOfM()(Ranked(score, score), 90)
    later = torch.rand(8, 16, generator=torch.Generator().manual_seed(1)).masked_fill(~first, -torch.inf)
    assert (KeepNOfM()(Ranked(later, later), 64) <= first).all()


def test_n_of_m_takes_a_vector_as_one_row():
    vector = torch.arange(8.0)
    expected = [False, False, True, True] * 2
    assert KeepNOfM()(Ranked(vector, vector), 4).tolist() == expected
    assert KeepNOfM()(Ranked(vector, vector), torch.tensor([4])).tolist() == expected


def test_n_of_m_says_what_does_not_fit():
    for shape, message in {
        (
            6,
            1,
            3,
            3,
        ): r"shape \(6, 1, 3, 3\): KeepNOfM\(n=2, m=4, dim=1\).*multiple of 4.* 1: .*another m or dim",
        (6,): r"shape \(6,\) \(a vector is one row\): KeepNOfM\(.*\).*multiple of 4.* 6: ignore",
    }.items():
        with pytest.raises(ValueError, match=message):
            KeepNOfM()(Ranked(torch.rand(shape), torch.rand(shape)), 3)
        with pytest.raises(ValueError, match=message):
            KeepNOfM().check(shape)
    with pytest.raises(ValueError, match=r"KeepNOfM\(.*dim=2\).*dimension 2.*another dim"):
        KeepNOfM(dim=2).check((4, 4))


def test_n_of_m_says_how_far_it_goes():
    square = Ranked(torch.rand(4, 4), torch.rand(4, 4))
    with pytest.raises(ValueError, match="at least 8 of 16.* 7: .*at most 0.5"):
        KeepNOfM()(square, 7)
    with pytest.raises(ValueError, match="at least 2 of 4.* 1: "):
        KeepNOfM()(square, torch.tensor([2, 4, 1, 3]))
    with pytest.raises(ValueError, match=r"KeepNOfM\(.*dim=0\).*choose dim=1"):
        KeepNOfM(dim=0)(square, torch.tensor([2, 2, 2, 2]))


# ---- groups ------------------------------------------------------------------------------------------------------


def group_key(part: Block | Filter, given_: Ranked, places):
    """Score and L1 norm of a group, by the words of the docstring."""
    lowest = torch.finfo(given_.score.dtype).min
    scores = [given_.score[p].item() for p in places]
    sizes = [abs(given_.weight[p].item()) for p in places]
    dead = [given_.dead is not None and bool(given_.dead[p]) and given_.score[p].item() < 0 for p in places]
    no_number = [s <= lowest or w == 0 or f for s, w, f in zip(scores, sizes, dead, strict=True)]
    numbers = [0.0 if no else s for s, no in zip(scores, no_number, strict=True)]
    norm = sum(sizes)
    joint = {
        "wald": sum(max(s, 0.0) ** 2 for s in numbers),
        "mean": sum(numbers) / len(numbers),
        "l1": norm,
    }[part.score]
    if all(s == -math.inf for s in scores):
        return -math.inf, norm
    if all(no_number) and part.score != "l1":
        return lowest, norm
    return joint, norm


def groups_by_hand(part: Block | Filter, given_: Ranked, groups, keep: int) -> Tensor:
    count = min(max(round(keep / len(groups[0])), 1), len(groups)) if keep else 0
    order = sorted(range(len(groups)), key=lambda i: (*group_key(part, given_, groups[i]), i))
    return mask_of(given_.score.shape, [place for i in order[len(groups) - count :] for place in groups[i]])


def filters_of(shape, dim):
    return [[p for p in product(*map(range, shape)) if p[dim] == i] for i in range(shape[dim])]


def blocks_of(shape, rows, cols):
    """The places of each block of the matrix flatten(1)."""
    tail = list(product(*map(range, shape[1:])))
    return [
        [(i, *tail[j]) for i in range(top, top + rows) for j in range(left, left + cols)]
        for top in range(0, shape[0], rows)
        for left in range(0, len(tail), cols)
    ]


shapes = st.sampled_from([(4, 6), (2, 3), (6, 2), (2, 6, 2), (4, 1, 3, 2), (1, 6)])


@given(ranked(shapes), st.sampled_from(GROUP_SCORES), st.sampled_from([0, 1]), st.data())
def test_filters_are_the_definition_at_every_count(given_, score, dim, data):
    part = Filter(dim, score)
    keep = data.draw(st.integers(0, given_.score.numel()))
    mask = part(given_, keep)
    assert torch.equal(mask, groups_by_hand(part, given_, filters_of(given_.score.shape, dim), keep))
    assert int(mask.sum()) == part.nearest(given_.score.shape, keep)


@given(ranked(st.sampled_from([(4, 6), (2, 3), (2, 3, 2), (4, 1, 3, 2)])), st.sampled_from(GROUP_SCORES), st.data())
def test_blocks_are_the_definition_at_every_count(given_, score, data):
    part = Block(2, 3, score)
    keep = data.draw(st.integers(0, given_.score.numel()))
    mask = part(given_, keep)
    assert torch.equal(mask, groups_by_hand(part, given_, blocks_of(given_.score.shape, 2, 3), keep))
    assert int(mask.sum()) == part.nearest(given_.score.shape, keep)


@given(ranked(st.sampled_from([(4, 6), (1, 3), (2, 3, 2)])), st.data())
def test_blocks_of_one_row_take_a_count_a_row(given_, data):
    part, (rows, size) = Block(1, 3), given_.score.flatten(1).shape
    keep = torch.tensor(data.draw(st.lists(st.integers(0, size), min_size=rows, max_size=rows)))
    one = [Ranked(*(None if t is None else t[i : i + 1] for t in given_)) for i in range(rows)]
    mask = part(given_, keep)
    assert torch.equal(mask, torch.cat([part(row, int(k)) for row, k in zip(one, keep, strict=True)]))
    assert torch.equal(mask.flatten(1).sum(1), part.nearest(given_.score.shape, keep))


@given(ranked(st.sampled_from([(4, 6), (2, 3, 2)])), st.data())
def test_element_takes_a_count_a_row(given_, data):
    rows, size = given_.score.flatten(1).shape
    keep = torch.tensor(data.draw(st.lists(st.integers(0, size), min_size=rows, max_size=rows)))
    each = [Element()(Ranked(given_.score[i], given_.weight[i]), int(keep[i])) for i in range(rows)]
    assert torch.equal(Element()(given_, keep), torch.stack(each))


def test_the_joint_wald_statistic_of_tau():
    """Filters with sum of (w / (lambda + sigma))² of 2, 1.25 and 9."""
    tau = torch.tensor([[1.0, 1.0], [1.0, 0.5], [0.0, 3.0]])
    weight = torch.ones(3, 2)
    assert Filter()(Ranked(tau, weight), 4)[:, 0].tolist() == [True, False, True]
    assert Filter(score="mean")(Ranked(tau, weight), 2)[:, 0].tolist() == [False, False, True]
    heavy = torch.tensor([[1.0, 1.0], [9.0, -9.0], [1.0, 1.0]])
    assert Filter(score="l1")(Ranked(tau, heavy), 2)[:, 0].tolist() == [False, True, False]


def test_the_place_of_a_dead_weight_in_the_order_is_no_evidence():
    weight = torch.tensor([[5.0, 1.0], [1.0, 1.0], [4.0, 4.0]])
    dead = torch.tensor([[True, False], [False, False], [True, True]])
    score = dead_first(torch.ones(3, 2), weight, dead)
    assert (score[dead] < 0).all()  # an order, of no size that means anything
    for by in ("wald", "mean"):
        mask = Filter(score=by)(Ranked(score, weight, dead), 2)
        assert mask[:, 0].tolist() == [False, True, False]
        assert Filter(score=by)(Ranked(score, weight, dead), 4)[:, 0].tolist() == [True, True, False]
    formula = torch.tensor([[9.0, 1.0], [1.0, 1.0], [0.0, 0.0]])  # dead="formula" gives numbers, which count
    assert Filter()(Ranked(formula, weight, dead), 2)[:, 0].tolist() == [True, False, False]


def test_a_pruned_group_ranks_below_one_with_negative_scores():
    score = torch.tensor([[-torch.inf, -torch.inf], [-2.0, -1.0], [-3.0, -3.0]])
    weight = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    assert Filter(score="mean")(Ranked(score, weight), 4)[:, 0].tolist() == [False, True, True]
    assert Filter(score="mean")(Ranked(score, weight), 2)[:, 0].tolist() == [False, True, False]


def test_large_and_infinite_scores_keep_their_order():
    score = torch.tensor([[1e30, 1e30], [2e30, 0.0], [torch.inf, 0.0], [torch.inf, torch.inf]])
    weight = torch.tensor([[1.0, 1.0], [1.0, 1.0], [3.0, 3.0], [1.0, 1.0]])
    kept = [Filter()(Ranked(score, weight), keep)[:, 0].nonzero().view(-1).tolist() for keep in (2, 4, 6)]
    assert kept == [[2], [2, 3], [1, 2, 3]]


def test_groups_are_summed_in_chunks(monkeypatch):
    score = torch.rand(12, 16, generator=torch.Generator().manual_seed(0))
    given_ = Ranked(score, score, score < 0.5)
    whole = [part(given_, 100) for part in (Block(), Filter(), Filter(1))]
    monkeypatch.setattr("prunewald.core.patterns._CHUNK", 40)
    for mask, part in zip(whole, (Block(), Filter(), Filter(1)), strict=True):
        assert torch.equal(part(given_, 100), mask)


def test_at_least_one_group_unless_none_is_asked_for():
    score = torch.rand(4, 16)
    for part in (Filter(), Block()):
        assert [int(part(Ranked(score, score), keep).sum()) for keep in (0, 1)] == [0, 16]
        assert [part.nearest((4, 16), keep) for keep in (0, 1)] == [0, 16]
    assert [Filter().nearest((4, 10), keep) for keep in (5, 15, 24, 25, 40)] == [10, 20, 20, 20, 40]  # halves to even


def test_groups_of_vectors():
    vector = torch.arange(1.0, 7.0)
    assert Filter()(Ranked(vector, vector), 3).all()  # one row is one filter
    assert Filter(1)(Ranked(vector, vector), 2).tolist() == [False] * 4 + [True] * 2
    assert Block(1, 3)(Ranked(vector, vector), 3).tolist() == [False] * 3 + [True] * 3


def test_groups_say_what_does_not_fit():
    with pytest.raises(ValueError, match=r"shape \(6, 8\): Block\(.*\).*multiple of 4.* 6: .*another rows"):
        Block().check((6, 8))
    with pytest.raises(ValueError, match=r"shape \(8, 3, 3, 3\): Block\(.*multiple of 4.* 27: .*another cols"):
        Block()(Ranked(torch.rand(8, 3, 3, 3), torch.rand(8, 3, 3, 3)), 4)
    with pytest.raises(ValueError, match=r"shape \(4, 4\): Filter\(dim=2, score='wald'\).*another dim"):
        Filter(2).check((4, 4))
    rows = torch.tensor([1, 1, 1, 1])
    square = Ranked(torch.rand(4, 4), torch.rand(4, 4))
    with pytest.raises(ValueError, match=r"Filter\(.*\).*counts are by row.*scope='layer'"):
        Filter()(square, rows)
    with pytest.raises(ValueError, match=r"Block\(.*\).*choose rows=1"):
        Block()(square, rows)


@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        (KeepNOfM, {"n": 4}, "n=4 of m=4"),
        (KeepNOfM, {"n": 0}, "n=0.*at least 1"),
        (KeepNOfM, {"m": 1}, "m=1.*at least 2"),
        (KeepNOfM, {"n": 2.0}, "n=2.0.*whole number"),
        (KeepNOfM, {"dim": -1}, "dim=-1.*at least 0"),
        (Block, {"rows": 0}, "rows=0.*at least 1"),
        (Block, {"cols": True}, "cols=True.*whole number"),
        (Block, {"score": "l2"}, "score='l2'.*'wald', 'mean', 'l1'"),
        (Filter, {"score": "sum"}, "score='sum'.*'wald', 'mean', 'l1'"),
        (Filter, {"dim": "out"}, "dim='out'.*whole number"),
    ],
)
def test_fields_are_checked(part, fields, message):
    with pytest.raises(ValueError, match=message):
        part(**fields)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "part", [Element(), KeepNOfM(), KeepNOfM(dim=0), Block(), Filter(), Filter(1, "mean"), Block(1)]
)
def test_a_pattern_is_the_same_on_every_device(part):
    """With ties, zeros of both signs and infinities; the scores are sums of powers of two, so that sums are exact."""
    some = torch.Generator().manual_seed(0)
    score = torch.randint(-4, 5, (64, 128), generator=some) / 4 * torch.tensor([1.0, -1.0]).repeat(64)
    score[3, :9], score[5, 2:70] = torch.inf, -torch.inf
    weight = torch.randint(-2, 3, (64, 128), generator=some).float()
    here = Ranked(score, weight, score < 0)
    there = Ranked(score.cuda(), weight.cuda(), (score < 0).cuda())
    for keep in (score.numel() // 2, 5001, torch.full((64,), 64), torch.arange(64) + 64):
        if isinstance(keep, int) or part in (Element(), KeepNOfM(), Block(1)):
            assert torch.equal(part(here, keep), part(there, keep).cpu())


def test_the_scores_that_are_given_stay_as_they_are():
    score = torch.tensor([[-torch.inf, 1.0], [2.0, -3.0]], dtype=torch.float64)
    before = score.clone()
    for part in (Filter(0), Filter(1, "mean"), Block(1, 2), Block(2, 1, "l1")):
        part(Ranked(score, score), 2)
        assert torch.equal(score, before)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("pattern", [Filter(), Filter(dim=1), Block(2, 2), KeepNOfM(1, 2)], ids=str)
def test_a_transposed_weight_is_grouped_as_its_layer_is(pattern, groups):
    layout = Layout(transposed=True, groups=groups)
    weight = torch.randn(8, 4, 2, generator=torch.Generator().manual_seed(0))  # (in, out / groups, ...)
    turned = torch.cat([part.transpose(0, 1) for part in weight.chunk(groups)])
    assert torch.equal(layout.swap(weight), turned)
    assert layout.swapped((8, 4, 2)) == turned.shape
    assert torch.equal(layout.swap(turned), weight)
    keep = by_layout(pattern, layout)(Ranked(weight.abs(), weight, weight > 1), 32)
    assert torch.equal(layout.swap(keep), pattern(Ranked(turned.abs(), turned, turned > 1), 32))
