"""Streams of symbols: what comes back, by every codec, and what it costs."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prunewald.storage.codes import streams
from tests.storage.helpers import allocating, skewed

symbols = hnp.arrays(np.uint8, st.integers(1, 3000), elements=st.integers(0, 255), fill=st.integers(0, 7))
CODECS = ["raw", "huffman", "ans"]


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=100, deadline=None)
@given(found=symbols)
def test_what_is_coded_comes_back(codec: str, found: NDArray[np.uint8]) -> None:
    data = streams.encode(found, frozenset({codec, "raw"}))
    assert np.array_equal(streams.decode(np.frombuffer(data, np.uint8), found.size), found)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513, 1025, 40_000, 70_000, 300_000])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 16, 17, 128, 129, 256])
def test_every_size(codec: str, count: int, alphabet: int) -> None:
    found = skewed(count, alphabet)
    data = streams.encode(found, frozenset({codec}))
    assert np.array_equal(streams.decode(np.frombuffer(data, np.uint8), count), found)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=50, deadline=None)
@given(found=symbols)
def test_the_cost_is_known_before(codec: str, found: NDArray[np.uint8]) -> None:
    allowed = frozenset({codec, "raw"})
    size, _ = streams.cost(streams.histogram(found), allowed)
    assert abs(len(streams.encode(found, allowed)) - size) <= 8


def test_planes_are_bit_0_of_all_numbers_then_bit_1_of_all() -> None:
    assert streams.write_planes(np.array([1, 2, 3]), 2) == bytes([0b101, 0b110])
    found = np.zeros(3, np.uint8)
    streams.read_planes(np.array([0b101, 0b110], np.uint8), 2, found)
    assert found.tolist() == [1, 2, 3]


def test_memory_of_counting() -> None:
    symbols = np.zeros(1 << 23, np.uint8)
    with allocating(2 * symbols.size):
        assert streams.entropy(symbols) == 0
