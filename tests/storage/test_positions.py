"""Places of survivors: what comes back, and how near the entropy."""

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prunewald.storage import positions

from .helpers import allocating

WAYS = [(p, c) for p in ("auto", "gaps", "ans", "bits") for c in ("auto", "huffman", "ans", "raw")]
masks = hnp.arrays(np.bool_, st.integers(0, 400), fill=st.booleans())


def again(mask: NDArray[np.bool_], where: str, codec: str) -> tuple[int, NDArray[np.bool_]]:
    data = positions.encode(mask, positions.allowed(where, codec))
    kept = int(np.count_nonzero(mask))
    return len(data), positions.decode(np.frombuffer(data, np.uint8), mask.size, kept)


@pytest.mark.parametrize(("where", "codec"), WAYS)
@settings(max_examples=60, deadline=None)
@given(mask=masks)
def test_what_is_coded_comes_back(where: str, codec: str, mask: NDArray[np.bool_]) -> None:
    assert np.array_equal(again(mask, where, codec)[1], mask)


def blocks(size: int) -> NDArray[np.bool_]:
    chosen = np.random.default_rng(0).random(size // 1000) < 0.3
    return np.repeat(chosen, 1000)


def two_of_four(size: int) -> NDArray[np.bool_]:
    order = np.random.default_rng(0).random((size // 4, 4)).argsort(1)
    return (order < 2).reshape(-1)


PATTERNS: dict[str, Any] = {
    **{f"{keep:%} at random": keep for keep in (0.00001, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999)},
    "blocks": blocks,
    "2:4": two_of_four,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_near_the_entropy(pattern: str) -> None:
    size, how = 1_000_000, PATTERNS[pattern]
    mask = how(size) if callable(how) else np.random.default_rng(0).random(size) < how
    bound = positions.bound(size, int(mask.sum())) / 8
    sizes = {}
    for where in ("auto", "ans", "gaps", "bits"):
        sizes[where], found = again(mask, where, "auto")
        assert np.array_equal(found, mask)
    assert sizes["auto"] == min(sizes.values())
    assert sizes["auto"] <= 1.01 * bound + 40
    if pattern == "blocks":
        assert sizes["auto"] < 0.05 * bound
    if pattern == "2:4":  # log2 C(4, 2) bits for four
        assert sizes["auto"] == pytest.approx(size / 4 * np.log2(6) / 8, rel=0.01)


def test_the_bound_is_the_number_of_masks() -> None:
    assert positions.bound(10, 3) == pytest.approx(np.log2(120))
    assert positions.bound(5, 0) == positions.bound(5, 5) == positions.bound(0, 0) == 0


def test_memory_of_wide_gaps() -> None:
    """Gaps of nine low bits, as no writer would store them, and all of them small."""
    count, coded = 1 << 22, 1 << 21
    planes = b"\xff" * (coded // 8) + bytes(coded)
    data = np.frombuffer(bytes([1, 9]) + bytes(8) + planes + bytes([3, 0]), np.uint8)
    with allocating(8 * (data.size + count)):
        mask = positions.decode(data, count, coded)
    assert mask[1::2].all()
    assert not mask[::2].any()
