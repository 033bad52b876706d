"""Every way to run a layer against torch's dense one, on shapes that nobody chose."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from prunewald.sparse.backends import MissingBackend, Way, kernel, missing, program, threads, ways, widths
from prunewald.sparse.compiler import library
from prunewald.sparse.compressed import Compressed
from prunewald.sparse.formats import stored
from prunewald.sparse.inspector import mkl
from prunewald.sparse.native import Step, kinds

WAYS = [Way("torch"), Way("mkl")]
WAYS += [Way("c", kind, 0, count) for kind in ("rows", "cols", "tiles") for count in (1, 2)]
WAYS += [Way("c", "rows", width, count) for width in (16, 32, 64) for count in (1, 2)]


def skip_if_missing(way):
    if way.backend == "mkl" and isinstance(mkl(), str):
        pytest.skip(mkl())
    if way.backend == "c" and way.kind not in kinds():
        pytest.skip(library() if isinstance(library(), str) else f"{way.kind} need AVX-512")


@contextmanager
def running(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def layer(outputs, inputs, sparsity, bias, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    weight[torch.rand(outputs, inputs, generator=generator) < sparsity] = 0
    return weight, torch.randn(outputs, generator=generator) if bias else None


shapes = st.tuples(st.integers(1, 80), st.integers(1, 150), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.booleans())


@pytest.mark.parametrize("way", WAYS, ids=str)
@settings(max_examples=20)
@given(shape=shapes, samples=st.integers(1, 70), made_for=st.integers(1, 70), seed=st.integers(0, 9))
def test_a_way_gives_what_the_dense_layer_gives(way, shape, samples, made_for, seed):
    skip_if_missing(way)
    weight, bias = layer(*shape, seed)
    x = torch.randn(samples, weight.shape[1])
    with running(way.threads):
        got = kernel(Compressed.of(weight, bias), way, made_for)(x)
    assert got.is_contiguous()
    torch.testing.assert_close(got, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_samples_give_no_outputs(way):
    skip_if_missing(way)
    assert kernel(Compressed.of(torch.eye(3, 5), None), way, 8)(torch.randn(0, 5)).shape == (0, 3)


@pytest.mark.parametrize("way", [way for way in WAYS if way.backend == "c"], ids=str)
@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 70), min_size=2, max_size=5), samples=st.integers(1, 70), seed=st.integers(0, 9))
def test_layers_in_a_row_are_one_call(way, sizes, samples, seed):
    skip_if_missing(way)
    layers = [layer(outputs, inputs, 0.8, True, seed) for inputs, outputs in pairwise(sizes)]
    x = wanted = torch.randn(samples, sizes[0])
    for at, (weight, bias) in enumerate(layers):
        wanted = F.linear(wanted, weight, bias)
        wanted = wanted.relu() if at % 2 == 0 else wanted
    steps = [Step(Compressed.of(*one), way.kind, at % 2 == 0) for at, one in enumerate(layers)]
    with running(way.threads):
        got = program(steps, way)(x)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", [way for way in WAYS if way.threads == 2], ids=str)
@pytest.mark.parametrize("samples", [1, 2, 3, 64, 130])
def test_the_number_of_threads_changes_no_bit(way, samples):
    skip_if_missing(way)
    steps = [Step(Compressed.of(*layer(90, 90, 0.8, True, seed)), way.kind, True) for seed in range(3)]
    x = torch.randn(samples, 90)
    with running(2):
        many = program(steps, way)(x)
        one = program(steps, Way("c", way.kind, way.width, 1))(x)
    with running(1):
        fewer = program(steps, way)(x)  # made for two
    assert torch.equal(many, one)
    assert torch.equal(many, fewer)


def test_relu_keeps_nan():
    for way in (way for way in WAYS if way.backend == "c" and way.kind in kinds()):
        x = torch.tensor([[float("nan"), 1.0]])
        got = program([Step(Compressed.of(torch.tensor([[1.0, 0.0], [0.0, -1.0]]), None), way.kind, True)], way)(x)
        assert got[0, 0].isnan()


@pytest.mark.skipif("tiles" not in kinds(), reason="no C compiler, or no AVX-512")
def test_tiles_hold_each_weight_once():
    weight = layer(37, 200, 0.7, False, 0)[0]
    made = stored(Compressed.of(weight, None), "tiles")
    assert sorted(made.values[made.values != 0]) == sorted(weight[weight != 0].tolist())
    assert made.starts[-1] * 16 == len(made.values) == len(made.places)
    assert made.counts.sum() == made.starts[-1]
    assert made.places.max() < 64


@settings(max_examples=40)
@given(shape=shapes, seed=st.integers(0, 9))
def test_a_compressed_weight_comes_back_whole(shape, seed):
    weight, bias = layer(*shape, seed)
    packed = Compressed.of(weight, bias)
    assert torch.equal(packed.dense(), weight)
    assert packed.zeros == pytest.approx(float((weight == 0).float().mean()))
    assert packed.bias is None or torch.equal(packed.bias, bias)


def test_what_is_tried():
    assert list(ways(("torch",), 1, 2)) == [Way("torch")]
    assert widths(1) == []
    assert widths(2) == [16]
    assert widths(17) == [16, 32]
    assert widths(64) == [16, 32, 64]
    assert not [way for way in ways(("c",), 65, 1) if not way.width]
    assert threads(1) == [1]


def test_a_backend_that_is_not_here_is_named(monkeypatch):
    for name in ("library", "mkl"):
        monkeypatch.setattr(f"prunewald.sparse.backends.{name}", lambda name=name: f"no {name}")
    assert missing(("torch", "mkl", "c")) == ["no mkl: not tried", "no library: not tried"]
    assert list(ways(("torch", "mkl"), 1, 1)) == [Way("torch")]
    packed = Compressed.of(torch.eye(3), None)
    with pytest.raises(MissingBackend, match="no mkl"):
        kernel(packed, Way("mkl"), 1)
    with pytest.raises(MissingBackend, match="no library"):
        kernel(packed, Way("c", "rows"), 1)
