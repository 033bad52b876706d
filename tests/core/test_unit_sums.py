"""Sums over rows, in chunks, against plain ones."""

import torch

from prunewald.core import unit_sums
from prunewald.core.unit_sums import reduced, row_sums


def test_rows_are_summed_in_chunks_without_what_does_not_count(monkeypatch) -> None:
    scores = torch.tensor([[1.0, -torch.inf, 2.0], [torch.nan, -3.0, 4.0], [0.5, 0.5, 1e30]])
    whole = row_sums(scores), row_sums(scores, 1)
    monkeypatch.setattr(unit_sums, "_CHUNK", 3)
    for (sums, counts), (chunked, numbers) in zip(whole, (row_sums(scores), row_sums(scores, 1)), strict=True):
        assert torch.equal(sums, chunked)
        assert torch.equal(counts, numbers)
    assert whole[0][0][:2].tolist() == [5.0, 16.0]
    assert float(whole[0][0][2]) > 1e59, "no square overflows"
    assert whole[0][1].tolist() == [2.0, 2.0, 3.0]
    assert whole[1][0][:2].tolist() == [3.0, 1.0]


def test_reductions() -> None:
    found = [(torch.tensor([6.0, 0.0]), torch.tensor([2.0, 0.0])), (torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.0]))]
    assert reduced(found).tolist() == [2.0, 1.0]
    assert reduced(found, "sum").tolist() == [8.0, 1.0]
    assert reduced(found, "first").tolist() == [3.0, 0.0]
    assert reduced(found, "max").tolist() == [3.0, 1.0]
