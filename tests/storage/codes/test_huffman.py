"""Huffman codes against slow, obvious references, and against the entropy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunewald.storage.codes import huffman, streams
from tests.storage.helpers import skewed


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
def test_is_as_short_as_the_textbooks(counts: list[int]) -> None:
    found = huffman.lengths(np.array(counts)).tolist()
    slow = slow_lengths(counts)
    assert [x > 0 for x in found] == [x > 0 for x in counts]
    assert sum(2.0**-x for x in found if x) == 1
    if max(slow) <= huffman.MAX_BITS:
        assert sum(map(int.__mul__, counts, found)) == sum(map(int.__mul__, counts, slow))


@given(st.lists(st.integers(1, 2**40), min_size=2, max_size=256))
def test_codes_stay_short(counts: list[int]) -> None:
    found = huffman.lengths(np.array(counts))
    assert found.max() <= huffman.MAX_BITS
    assert (0.5 ** found.astype(float)).sum() == 1


@pytest.mark.parametrize("alphabet", [3, 32, 200])
def test_is_within_a_bit_of_the_entropy(alphabet: int) -> None:
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


def test_pieces_are_one_code() -> None:
    found = skewed(5000, 20)
    lengths = huffman.lengths(streams.histogram(found))
    data = huffman.encode(found, lengths)
    pieces = -(-5000 // 512)
    start = (len(lengths) + 1) // 2 + 2 + 2 * pieces
    assert slow_decode(data[start:], lengths.tolist(), 5000) == found.tolist()
