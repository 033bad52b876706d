"""Huffman and ANS against slow, obvious references, and against the entropy."""

import sys
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prunewald.storage import load, save
from prunewald.storage.codes import ans, huffman, streams
from tests.storage.helpers import holding

symbols = hnp.arrays(np.uint8, st.integers(1, 3000), elements=st.integers(0, 255), fill=st.integers(0, 7))
CODECS = ["raw", "huffman", "ans"]


def skewed(count: int, alphabet: int, seed: int = 0) -> NDArray[np.uint8]:
    drawn = np.random.default_rng(seed).geometric(0.3, count) - 1
    return np.minimum(drawn, alphabet - 1).astype(np.uint8)


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


def slow_lengths(counts: list[int]) -> list[int]:
    """The textbook: join the two lightest trees."""
    trees: list[tuple[int, list[int]]] = [(count, [i]) for i, count in enumerate(counts) if count]
    lengths = [0] * len(counts)
    while len(trees) > 1:
        trees.sort(key=lambda tree: tree[0])
        (a, some), (b, others) = trees[:2]
        for i in some + others:
            lengths[i] += 1
        trees = [*trees[2:], (a + b, some + others)]
    return lengths


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40).filter(lambda c: sum(x > 0 for x in c) > 1))
def test_huffman_is_as_short_as_the_textbooks(counts: list[int]) -> None:
    found = huffman.lengths(np.array(counts)).tolist()
    slow = slow_lengths(counts)
    assert [x > 0 for x in found] == [x > 0 for x in counts]
    assert sum(2.0**-x for x in found if x) == 1
    if max(slow) <= huffman.MAX_BITS:
        assert sum(map(int.__mul__, counts, found)) == sum(map(int.__mul__, counts, slow))


@given(st.lists(st.integers(1, 2**40), min_size=2, max_size=256))
def test_huffman_codes_stay_short(counts: list[int]) -> None:
    found = huffman.lengths(np.array(counts))
    assert found.max() <= huffman.MAX_BITS
    assert (0.5 ** found.astype(float)).sum() == 1


@pytest.mark.parametrize("alphabet", [3, 32, 200])
def test_huffman_is_within_a_bit_of_the_entropy(alphabet: int) -> None:
    found = skewed(100_000, alphabet)
    counts = streams.histogram(found)
    bits = int((counts * huffman.lengths(counts)).sum())
    entropy = streams.entropy(found)
    assert entropy <= bits <= entropy + found.size
    data = huffman.encode(found, huffman.lengths(counts))
    assert 8 * len(data) <= bits + 16 * 200 + 4 * alphabet  # pieces and code lengths


def slow_decode(data: bytes, lengths: list[int], count: int) -> list[int]:
    """Bit by bit."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code <<= length - before
        codes[f"{code:0{length}b}"] = symbol
        code, before = code + 1, length
    found: list[int] = []
    word = ""
    for bit in "".join(f"{byte:08b}" for byte in data):
        word += bit
        if word in codes and len(found) < count:
            found.append(codes[word])
            word = ""
    return found


def test_huffman_pieces_are_one_code() -> None:
    found = skewed(5000, 20)
    lengths = huffman.lengths(streams.histogram(found))
    data = huffman.encode(found, lengths)
    pieces = -(-5000 // 512)
    start = (len(lengths) + 1) // 2 + 2 + 2 * pieces
    assert slow_decode(data[start:], lengths.tolist(), 5000) == found.tolist()


@pytest.mark.parametrize("alphabet", [2, 32, 256])
def test_ans_is_within_half_a_percent_of_the_entropy(alphabet: int) -> None:
    found = np.random.default_rng(0).binomial(alphabet - 1, 0.4, 100_000).astype(np.uint8)
    counts = streams.histogram(found)
    size = len(ans.encode(found, ans.table(counts))) - counts.size
    entropy = streams.entropy(found) / 8
    assert entropy * 0.9999 < size < entropy * 1.005 + 8


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=256).filter(any))
def test_ans_frequencies(counts: list[int]) -> None:
    found = ans.frequencies(ans.table(np.array(counts)))
    assert found.sum() == ans.TOTAL
    assert found.min() >= 1
    share = np.array(counts) / sum(counts)
    common = share > 0.02
    assert np.allclose(found[common] / ans.TOTAL, share[common], rtol=0.08)


def test_ans_frequencies_are_those_of_the_page() -> None:
    """In integers, so that every machine and every language finds them."""
    # Weights 16, 31 · 2^15, 16 · 2^8, 17 · 2^8; the second is the largest, and gets the one that misses.
    assert ans.frequencies(np.array([0, 255, 128, 129], np.uint8)).tolist() == [2, 64992, 263, 279]


def test_without_constriction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor(skewed(5000, 20)).float()
    model, missing = holding(w=weight), cast_any(None)
    save(model, tmp_path / "ans", codec="ans")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "constriction", missing)
        with pytest.raises(ImportError, match="pip install constriction"):
            load(tmp_path / "ans")
        for how in ({"codec": "ans"}, {"positions": "ans"}):
            with pytest.raises(ImportError, match="pip install constriction"):
                save(model, tmp_path / "f", **cast_any(how))
        save(model, tmp_path / "auto")
        assert torch.equal(load(tmp_path / "auto")["w"], weight)
    save(model, tmp_path / "huffman", codec="huffman")
    assert (tmp_path / "huffman").read_bytes() == (tmp_path / "auto").read_bytes()
    assert (tmp_path / "ans").stat().st_size < (tmp_path / "auto").stat().st_size


def cast_any(value: object) -> Any:
    return value
