"""Gram matrices summed up a few rows at a time, of the symmetric ones one half."""

import pytest
import torch

from prunewald.refitting import sums
from prunewald.refitting.sums import Met


@pytest.mark.parametrize("rows", [1, 4, 5, 10, 512])
@pytest.mark.parametrize("groups", [1, 3])
def test_products_in_pieces_are_the_products(monkeypatch, rows, groups):
    monkeypatch.setattr(sums, "_ROWS", rows)
    x, z = torch.randn(2, groups, 40, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    met = Met()
    for one, other in zip(x.split(20, 1), z.split(20, 1), strict=True):
        met.add(one, other)
    met.reduced(groups, 11, x.device, between=True)
    x, z = (torch.cat([part, torch.ones(groups, 40, 1, dtype=torch.float64)], 2) for part in (x, z))
    torch.testing.assert_close(met.inputs, x.mT @ x)
    torch.testing.assert_close(met.between, z.mT @ x)
    assert met.count == 40


def test_products_with_targets_have_a_one_on_the_side_of_the_inputs(monkeypatch):
    monkeypatch.setattr(sums, "_ROWS", 2)
    x, y = torch.randn(1, 30, 6), torch.randn(1, 30, 5)
    found = sums.Sums(Met())
    found.add(x, y)
    torch.testing.assert_close(found.cross.float(), y.mT @ torch.cat([x, torch.ones(1, 30, 1)], 2))
