"""Parts of parameters, known by the memory they look at."""

import pytest
import torch

from prunewald.model.layouts import Layout
from prunewald.refitting.units import Places, Span, Unit

PACKED, STACK, BIAS = torch.randn(12, 4), torch.randn(3, 5, 4), torch.randn(12)
PLACES = Places({"packed": PACKED, "stack": STACK, "bias": BIAS})


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (PACKED, "packed"),
        (PACKED[4:8], "packed[4:8]"),
        (PACKED.chunk(3)[2], "packed[8:12]"),
        (STACK[1], "stack[1]"),
        (STACK[torch.tensor(2)], "stack[2]"),
        (BIAS[4:8], "bias[4:8]"),
    ],
)
def test_a_view_is_found(view, name):
    assert PLACES.find(view).name == name
    assert torch.equal(
        PLACES.find(view).take({"packed": PACKED, "stack": STACK, "bias": BIAS}[name.split("[")[0]]), view
    )


@pytest.mark.parametrize(
    "other", [PACKED.clone(), PACKED[:, :2], PACKED[::2], PACKED + 0, STACK[:, 0], PACKED.view(4, 12)]
)
def test_anything_else_is_not(other):
    assert PLACES.find(other) is None


def test_the_other_way():
    assert PLACES.turned(PACKED.t()) == (Span("packed"), True)
    assert PLACES.turned(STACK[2].t()) == (Span("stack", 2, 3, single=True), True)
    assert PLACES.turned(STACK.mT) == (Span("stack"), True)
    assert PLACES.turned(PACKED) == (Span("packed"), False)


def test_what_is_dropped_is_not_found():
    places = Places({})
    places.add({"packed": PACKED})
    assert places.find(PACKED) == Span("packed")
    places.drop({"packed": PACKED})
    assert places.find(PACKED) is None


@pytest.mark.parametrize(
    ("unit", "shape"),
    [
        (Unit(Span("w")), (6, 4, 3, 3)),
        (Unit(Span("w"), Layout(transposed=True)), (4, 6)),
        (Unit(Span("w"), Layout(transposed=True, groups=2), groups=2), (4, 3, 2, 2)),
        (Unit(Span("w", 2, 4)), (6, 4)),
        (Unit(Span("w", 1, 2, single=True), Layout(transposed=True)), (3, 4, 6)),
    ],
    ids=str,
)
def test_rows_are_put_where_they_were_taken_and_nothing_else_is_written(unit, shape):
    weight, kept = torch.randn(shape), torch.zeros(shape)
    rows = unit.matrix(weight)
    assert rows.dim() == 2
    unit.put_(kept, rows)
    assert torch.equal(unit.matrix(kept), rows)
    assert int(torch.count_nonzero(kept)) == rows.numel()
