"""One tensor as three sections: what comes back, which form is taken, what it could not go below."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from prunewald.storage import sections
from prunewald.storage.codes import streams
from prunewald.storage.index import TensorEntry
from prunewald.storage.options import TensorOptions
from prunewald.storage.positions import allowed, bound

from .helpers import identical, noise


def options(values: str | None = None, size: int = 32) -> TensorOptions:
    return TensorOptions(values, size, streams.allowed("auto"), allowed("auto", "auto"))


def packed(tensor: Tensor, mask: Tensor | None = None, **given: Any) -> tuple[TensorEntry, Tensor]:
    return sections.pack(["w"], tensor, mask, options(**given))


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("masked", [True, False])
def test_what_is_packed_comes_back(keep: float, masked: bool) -> None:
    torch.manual_seed(0)
    mask = torch.rand(40, 50) < keep
    weight = torch.where(mask, noise(torch.float32, 40, 50), 0.0)
    entry, stored = packed(weight, mask if masked else None)
    assert identical({"w": sections.unpack(entry, stored)}, {"w": weight})


def test_the_three_sections_are_as_long_as_the_index_says() -> None:
    torch.manual_seed(0)
    mask = torch.rand(40, 50) < 0.1
    entry, stored = packed(torch.where(mask, torch.randn(40, 50), 0.0), mask, values="codebook", size=8)
    assert entry.packed is not None
    assert (entry.packed.kept, entry.packed.values) == (int(mask.sum()), "codebook")
    assert tuple(len(section) for section in sections.split(entry, entry.packed, stored)) == entry.packed.bytes
    assert entry.packed.bytes[1] == 8 * 4
    assert stored.numel() == sum(entry.packed.bytes)


def test_a_mask_that_prunes_is_stored_even_where_dense_is_smaller() -> None:
    few = torch.tensor([1.0, 0.0])
    assert packed(few)[0].packed is None
    assert packed(few, torch.tensor([True, False]))[0].packed is not None
    assert packed(few, torch.tensor([True, True]))[0].packed is None


def test_zeros_stay_zeros_where_values_lose_bits() -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 50)
    weight[0, 0] = 0
    entry, stored = packed(weight, values="int4")
    assert sections.unpack(entry, stored)[0, 0] == 0
    assert entry.packed is not None
    assert entry.packed.kept == 1999


def test_the_bound() -> None:
    torch.manual_seed(0)
    mask = torch.rand(100, 100) < 0.2
    weight = torch.where(mask, torch.randint(1, 5, (100, 100)).float(), 0.0)
    entry, stored = packed(weight, mask)
    _, codes = np.unique(weight[mask].numpy(), return_inverse=True)
    least = bound(10_000, int(mask.sum())) + streams.entropy(codes.astype(np.uint8)) + 4 * 32
    assert sections.bound(entry, stored) == pytest.approx(least)
    assert sections.bound(entry, stored) <= 8 * stored.numel() < 1.1 * least
    dense, stored = packed(noise(torch.int16, 50))
    assert dense.packed is None
    assert 0 < sections.bound(dense, stored) <= 8 * stored.nbytes
    assert sections.bound(*packed(torch.ones(0))) == 0


def test_an_error_names_the_tensor() -> None:
    with pytest.raises(ValueError, match=r"'w'.*torch.float64 \(3,\).*F32"):
        sections.unpack(TensorEntry(("w",), "F32", (3,)), torch.ones(3, dtype=torch.float64))
