"""Spread and median over many pieces, against torch over all of it at once."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.core import weights
from prunewald.core.kth import TOGETHER, lower_median
from prunewald.core.weights import NotYet, Weight, WeightStats, living_sigma, spread
from prunewald.util.tensors import pieces


def draw(seed, size, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 3),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.booleans(),
    st.sampled_from([1, 7, 1 << 20]),
)
def test_the_spread_of_many_tensors_is_that_of_one_long_one(sizes, dtype, masked, piece):
    tensors = [10 + draw(seed, size, dtype) for seed, size in enumerate(sizes)]
    masks = [draw(99 + seed, size) > -0.5 if masked else None for seed, size in enumerate(sizes)]
    pairs = zip(tensors, masks, strict=True)
    living = torch.cat([t if mask is None else t[mask] for t, mask in pairs]).double()
    expected = float(living.std()) if len(living) > 1 else 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "_PIECE", piece)
        found = spread(list(zip(tensors, masks, strict=True)), "all targets")
    assert found == pytest.approx(expected, rel=1e-9 if dtype == torch.float64 else 1e-5)


def test_the_spread_of_the_last_survivor_of_many_is_zero_and_of_one_weight_is_not_known():
    tensor = torch.tensor([3.0, 4.0])
    assert spread([(tensor, tensor > 3)], "'fc'") == 0.0
    assert spread([(tensor, tensor > 9)], "'fc'") == 0.0
    with pytest.raises(ValueError, match="'fc'.*relative_to='model'.*relative_to=None"):
        spread([(torch.ones(1), None)], "'fc'")


def test_the_spread_of_a_parameter_is_worked_out_once():
    param = draw(0, (4, 5))
    weight = Weight("fc", param, param > -1)
    first = weight.spread
    assert first == pytest.approx(float(param[param > -1].double().std()), rel=1e-6)
    param.zero_()
    assert weight.spread == first


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0, float("inf")]), min_size=2, max_size=30))
def test_the_lower_median_is_one_of_the_values(values):
    assert lower_median(lambda: torch.tensor(values).split(4)) == sorted(values)[(len(values) - 1) // 2]


@pytest.mark.parametrize("size", [2, 3, TOGETHER - 1, TOGETHER, TOGETHER + 1, 3 * TOGETHER])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_lower_median_is_torch_s_however_many_there_are(size, dtype):
    values = draw(size, size, dtype)
    assert lower_median(partial(pieces, values)) == float(values.median())


def test_one_value_has_no_median():
    assert lower_median(lambda: torch.ones(1).split(1)) is None


@pytest.mark.parametrize("size", [5, 100_000])
def test_living_sigmas_are_finite_and_of_weights_neither_dead_nor_pruned(size):
    torch.manual_seed(0)
    sigma, dead, alive = torch.rand(2, size), torch.rand(2, size) < 0.3, torch.rand(2, size) < 0.7
    sigma[0, ::7], sigma[1, ::5] = torch.inf, torch.nan
    for gone in (None, dead):
        for stays in (None, alive):
            own = sigma.isfinite()
            own = own if gone is None else own & ~gone
            own = own if stays is None else own & stays
            assert torch.cat(list(living_sigma(sigma, gone, stays))).equal(sigma[own])


def test_what_a_criterion_needs_and_does_not_have_says_how_to_get_it():
    known = WeightStats("fc", torch.ones(2), None, None, None, lambda group: 1.0, torch.zeros(2), torch.ones(2))
    assert known.require_gradient().tolist() == [0, 0]
    assert known.require_statistic().tolist() == [1, 1]
    nothing = WeightStats("fc", torch.ones(2), None, None, None, lambda group: 1.0)
    with pytest.raises(NotYet, match=r"'fc'.*loss\.backward\(\)"):
        nothing.require_gradient()
    with pytest.raises(NotYet, match="'fc'.*train a few steps"):
        nothing.require_statistic()
