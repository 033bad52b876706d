"""ANS codes: near the entropy, with frequencies that any machine finds, and what goes without constriction."""

import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.storage import load, save
from prunewald.storage.codes import ans, streams
from tests.storage.helpers import holding, skewed


@pytest.mark.parametrize("alphabet", [2, 32, 256])
def test_is_within_half_a_percent_of_the_entropy(alphabet: int) -> None:
    found = np.random.default_rng(0).binomial(alphabet - 1, 0.4, 100_000).astype(np.uint8)
    counts = streams.histogram(found)
    size = len(ans.encode(found, ans.table(counts))) - counts.size
    entropy = streams.entropy(found) / 8
    assert entropy * 0.9999 < size < entropy * 1.005 + 8


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=256).filter(any))
def test_frequencies(counts: list[int]) -> None:
    found = ans.frequencies(ans.table(np.array(counts)))
    assert found.sum() == ans.TOTAL
    assert found.min() >= 1
    share = np.array(counts) / sum(counts)
    common = share > 0.02
    assert np.allclose(found[common] / ans.TOTAL, share[common], rtol=0.08)


def test_frequencies_are_those_of_the_page() -> None:
    """In integers, so that every machine and every language finds them."""
    # Weights 16, 31 · 2^15, 16 · 2^8, 17 · 2^8; the second is the largest, and gets the one that misses.
    assert ans.frequencies(np.array([0, 255, 128, 129], np.uint8)).tolist() == [2, 64992, 263, 279]


def test_without_constriction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor(skewed(5000, 20)).float()
    model, missing = holding(w=weight), cast(Any, None)
    save(model, tmp_path / "ans", codec="ans")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "constriction", missing)
        with pytest.raises(ImportError, match="pip install constriction"):
            load(tmp_path / "ans")
        for how in ({"codec": "ans"}, {"positions": "ans"}):
            with pytest.raises(ImportError, match="pip install constriction"):
                save(model, tmp_path / "f", **cast(Any, how))
        save(model, tmp_path / "auto")
        assert torch.equal(load(tmp_path / "auto")["w"], weight)
    save(model, tmp_path / "huffman", codec="huffman")
    assert (tmp_path / "huffman").read_bytes() == (tmp_path / "auto").read_bytes()
    assert (tmp_path / "ans").stat().st_size < (tmp_path / "auto").stat().st_size
