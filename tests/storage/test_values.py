"""Values of survivors as bytes: what comes back, and how far off where bits are lost."""

import numpy as np
import pytest
import torch
from torch import Tensor

from prunewald.storage import values
from prunewald.storage.codes import streams
from prunewald.storage.index import DTYPES
from prunewald.storage.values import Coded, as_bits, from_bits, lossless, lossy, narrower

from .helpers import noise, raw

CODECS = streams.allowed("auto")


def decoded(coded: Coded, count: int, dtype: torch.dtype) -> Tensor:
    book, body = (np.frombuffer(data, np.uint8) for data in (coded.book, coded.body))
    return values.decode(coded.kind, book, body, count, dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("count", [0, 1, 400])
@pytest.mark.parametrize("few", [True, False])
def test_lossless_is_bit_for_bit(dtype: torch.dtype, count: int, few: bool) -> None:
    torch.manual_seed(0)
    given = noise(dtype, 3)[torch.randint(3, (count,))] if few else noise(dtype, count)
    assert raw(decoded(lossless(given, CODECS), count, dtype)) == raw(given)


def test_few_values_are_a_codebook_and_many_are_not() -> None:
    assert lossless(torch.arange(256.0).repeat(20), CODECS).kind == "codebook"
    assert lossless(torch.arange(257.0).repeat(20), CODECS).kind == "F32"
    late = torch.cat([torch.zeros(5000), torch.randn(5000)])  # few among the first that are looked at
    assert lossless(late, CODECS).kind == "F32"
    assert raw(decoded(lossless(late, CODECS), 10_000, torch.float32)) == raw(late)


@pytest.mark.parametrize(("what", "top"), [("int8", 127), ("int4", 7)])
def test_linear_is_within_half_a_step(what: str, top: int) -> None:
    torch.manual_seed(0)
    given = torch.randn(500)
    found = decoded(lossy(given, what, 32, CODECS), 500, torch.float32)
    step = float(given.abs().max()) / top
    assert (found - given).abs().max() <= step / 2 * (1 + 1e-5)
    assert found.abs().max() == pytest.approx(float(given.abs().max()))


@pytest.mark.parametrize("what", ["float16", "bfloat16"])
def test_shorter_floats_are_those_of_torch(what: str) -> None:
    torch.manual_seed(0)
    given = torch.randn(500)
    coded = lossy(given, what, 32, CODECS)
    assert torch.equal(decoded(coded, 500, torch.float32), given.to(getattr(torch, what)).float())


def test_a_codebook_has_its_size() -> None:
    torch.manual_seed(0)
    coded = lossy(torch.randn(500), "codebook", 16, CODECS)
    assert values.book_size(coded.kind, len(coded.book), torch.float32) == 16
    assert len(decoded(coded, 500, torch.float32).unique()) == 16


def test_which_dtypes_are_narrower() -> None:
    assert narrower(torch.float16, torch.float32)
    assert narrower(torch.float32, torch.float64)
    assert not narrower(torch.float32, torch.float32)
    assert not narrower(torch.bfloat16, torch.float16)
    assert not narrower(torch.float16, torch.int64)
    assert lossy(torch.randn(5).half(), "float16", 32, CODECS).kind == "F16"  # stays as it is


def test_bits() -> None:
    given = torch.tensor([0.0, -0.0, float("nan")])
    assert as_bits(given).tolist()[:2] == [0, 1 << 31]
    assert raw(from_bits(as_bits(given), torch.float32)) == raw(given)
    assert from_bits(as_bits(torch.ones(0)), torch.float32).shape == (0,)


@pytest.mark.parametrize(
    ("given", "what", "reason"),
    [
        (torch.tensor([1.0, float("nan")]), "codebook", "NaN.*values='codebook'"),
        (torch.tensor([1.0, float("inf")]), "int8", "infinite.*values='int8'"),
        (torch.tensor([1e6]), "float16", "too large.*float16"),
        (torch.tensor([1e300], dtype=torch.float64), "int4", "too large.*values='int4'"),
    ],
)
def test_what_fewer_bits_cannot_hold(given: Tensor, what: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        lossy(given, what, 32, CODECS)
