"""Numbers and text in a page come back as they were."""

import base64
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunewald.web.bins import Cells, binned, cells_for
from prunewald.web.encoding import array, counts, embedded, finite, short
from prunewald.web.pictures import mask


def decoded(text: str) -> list[int]:
    """What `counts` wrote: seven bits a byte, the lowest first; after each 0 how many more follow."""
    found: list[int] = []
    numbers, number, scale = [], 0, 1
    for byte in base64.b64decode(text):
        number += (byte & 127) * scale
        scale *= 128
        if byte < 128:
            numbers.append(number)
            number, scale = 0, 1
    stream = iter(numbers)
    for value in stream:
        found += [value] if value else [0] * (1 + next(stream))
    return found


@given(st.lists(st.integers(0, 2**33) | st.just(0)))
def test_counts_come_back(values: list[int]) -> None:
    assert decoded(counts(torch.tensor(values, dtype=torch.int64))) == values


def test_arrays_come_back_to_the_last_bit() -> None:
    values = torch.tensor([0.1, -0.0, torch.inf, 1e-45, 3.4e38])
    for dtype, kind in ((torch.float32, "<f4"), (torch.float64, "<f8")):
        back = np.frombuffer(base64.b64decode(array(values.to(dtype))), kind)
        assert back.tobytes() == values.to(dtype).numpy().tobytes()
    bits = torch.arange(13) % 3 == 0
    back = np.unpackbits(np.frombuffer(base64.b64decode(array(bits)), np.uint8), bitorder="little", count=13)
    assert back.tolist() == bits.int().tolist()


@pytest.mark.parametrize("text", ["</script>", "<!--", "<script", "a & b", "\u2028\u2029", 'λ "quoted" \\ back'])
def test_no_text_leaves_its_element(text: str) -> None:
    written = embedded({text: [text]})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {text: [text]}


def test_what_json_cannot_hold_is_none() -> None:
    assert [finite(value) for value in (1.5, float("nan"), float("inf"), None)] == [1.5, None, None, None]
    assert short(0.1 + 0.2) == 0.3
    with pytest.raises(ValueError, match="JSON"):
        embedded({"a": float("nan")})


def test_every_weight_is_counted_once() -> None:
    torch.manual_seed(0)
    weight, sigma = torch.randn(5000), torch.randn(5000).exp()
    weight[:100] = 0
    sigma[100:150] = torch.inf
    sigma[150:190] = 0
    dead = torch.zeros(5000, dtype=torch.bool)
    dead[170:260] = True
    alive = torch.ones(5000, dtype=torch.bool)
    alive[:30] = False
    alive[250:300] = False
    found = binned(weight, sigma, dead, alive, Cells(40, 20))
    sums = {name: sum(decoded(found[name])) for name in ("counts", "dead", "unknown", "certain")}
    assert found["zeros"] == 70
    assert sums == {"counts": 5000 - 300, "dead": 80, "unknown": 50, "certain": 20}
    assert sum(sums.values()) + found["zeros"] == int(alive.sum())


def test_a_layer_of_one_sigma_or_of_nothing_has_bins_too() -> None:
    weight, alive = torch.linspace(0.1, 1, 50), torch.ones(50, dtype=torch.bool)
    one = binned(weight, torch.full((50,), 0.3), None, alive, Cells(40, 20))
    assert sum(decoded(one["counts"])) == 50
    assert one["sigma"][2] == 1
    none = binned(weight, torch.full((50,), 0.3), None, ~alive, Cells(40, 20))
    assert sum(decoded(none["counts"])) == 0


def test_a_page_of_many_layers_has_coarser_bins() -> None:
    few, many = cells_for(3), cells_for(400)
    assert few.weight * few.sigma > many.weight * many.sigma
    assert 400 * many.weight * many.sigma < 2_000_000
    keep = torch.rand(300, 200) < 0.1
    fine, coarse = mask(keep, 3), mask(keep, 400)
    assert (fine["rows"], fine["columns"], fine["of"]) == (72, 72, [300, 200])
    assert 400 * coarse["rows"] * coarse["columns"] <= 400_000
