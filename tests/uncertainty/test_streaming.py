"""The streamed standard deviation against a two-pass one in double precision."""

import pytest
import torch

from prunewald.uncertainty.streaming import collect_, merged, new_block, shift_to_

B = 200


def walk(kind: str, scale: float, n: int = 2000) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    centre = 1e-2 * torch.randn(n, generator=g, dtype=torch.float64)
    noise = scale * torch.randn(B, n, generator=g, dtype=torch.float64)
    path = {"independent": noise, "walk": noise.cumsum(0), "outlier": noise}[kind]
    if kind == "outlier":
        path[0] += 1000 * scale
    return (centre + path).float()


def sigma(path: torch.Tensor, blocks: int = 1, compiled: bool = False, gated: bool = False) -> torch.Tensor:
    shift: dict[str, torch.Tensor] = {}
    made: list[dict[str, object]] = []
    for i, w in enumerate(path):
        if i % (len(path) // blocks) == 0:
            shift_to_(shift, made, {"w": w})
            made.append(new_block({"w": w}))
        took = torch.ones((), dtype=torch.int64) if gated else None
        collect_(shift, made[-1], {"w": w}, {"w": None}, took, compiled)
    count, m2 = merged(made, "w")
    assert count == len(path)
    return (m2 / (count - 1)).sqrt()


@pytest.mark.parametrize("scale", [1e-7, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("kind", ["independent", "walk", "outlier"])
@pytest.mark.parametrize("blocks", [1, 5])
def test_relative_error_is_below_1e_5(kind, scale, blocks):
    path = walk(kind, scale)
    exact = path.double().std(0)
    error = (sigma(path, blocks).double() - exact).abs() / exact
    assert float(error[exact > 0].max()) < 1e-5


@pytest.mark.parametrize("way", [{"gated": True}, pytest.param({"compiled": True}, marks=pytest.mark.slow)])
def test_the_other_ways_agree_with_the_plain_one(way):
    path = walk("walk", 1e-4)
    torch.testing.assert_close(sigma(path, **way), sigma(path), rtol=1e-5, atol=0)


def test_a_snapshot_that_does_not_count_leaves_no_trace():
    path = walk("independent", 1e-4)[:5]
    shift, block = {}, new_block({"w": path[0]}, marked=True)
    shift_to_(shift, [], {"w": path[0]})
    one, none = torch.ones((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    for w in path:
        collect_(shift, block, {"w": w}, {"w": None}, one, compiled=False)
        collect_(shift, block, {"w": w + 1}, {"w": torch.full_like(w, torch.inf)}, none, compiled=False)
    count, m2 = merged([block], "w")
    assert count == 5
    torch.testing.assert_close((m2 / 4).sqrt(), path.std(0))
    assert not block["moved"]["w"].any()


def test_low_precision_weights_are_accumulated_in_float32():
    path = walk("walk", 1e-3).bfloat16()
    assert sigma(path).dtype == torch.float32
    torch.testing.assert_close(sigma(path), path.float().std(0), rtol=1e-4, atol=1e-8)


def test_double_precision_weights_stay_so():
    assert sigma(walk("walk", 1e-3).double()).dtype == torch.float64


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 50_000), (70_000, 3), (2, 3, 4, 5)])
def test_every_shape_is_cut_into_lots_and_put_together_again(shape):
    g = torch.Generator().manual_seed(1)
    path = torch.randn(6, *shape, generator=g)
    torch.testing.assert_close(sigma(path, blocks=2), path.std(0))


def test_a_strided_weight_and_its_gradient_of_other_strides():
    g = torch.Generator().manual_seed(1)
    path = torch.randn(6, 4, 5, 6, 7, generator=g)
    grad = torch.randn(4, 5, 6, 7, generator=g) * (torch.rand(4, 5, 6, 7, generator=g) > 0.5)
    first = path[0].contiguous(memory_format=torch.channels_last)
    shift, block = {}, new_block({"w": first}, marked=True)
    shift_to_(shift, [], {"w": first})
    for w in path:
        collect_(
            shift, block, {"w": w.contiguous(memory_format=torch.channels_last)}, {"w": grad}, None, compiled=False
        )
    _, m2 = merged([block], "w")
    torch.testing.assert_close((m2 / 5).sqrt(), path.std(0))
    assert torch.equal(block["moved"]["w"], grad != 0)
