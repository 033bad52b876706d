"""Layers of many replicas against torch's own, replica by replica."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from prunewald.ensemble import layers

pytestmark = pytest.mark.usefixtures("one_thread")


def agree(ours, plain, *inputs: Tensor) -> list[Tensor]:
    """Outputs and gradients of three replicas are those of each alone; returns the gradients."""
    inputs = tuple(tensor.double().requires_grad_() for tensor in inputs)
    together = vmap(ours)(*inputs)
    apart = torch.stack([plain(*(tensor[r] for tensor in inputs)) for r in range(3)])
    torch.testing.assert_close(together, apart)
    by = torch.randn_like(apart)
    found, wanted = (torch.autograd.grad((out * by).sum(), inputs) for out in (together, apart))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    return list(found)


@pytest.mark.parametrize("shape", [(4, 300), (2, 3, 300)])
def test_a_large_dense_layer_leaves_gradients_as_the_weights_lie(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given = torch.randn(3, *shape), torch.randn(3, 256, 300), torch.randn(3, 256)
    _, grad, _ = agree(layers.linear, F.linear, *given)
    assert grad.is_contiguous()


def test_a_small_dense_layer_and_one_without_bias_are_torchs_own() -> None:
    x, weight = torch.randn(3, 4, 5), torch.randn(3, 6, 5)
    assert torch.equal(vmap(layers.linear)(x, weight), vmap(F.linear)(x, weight))
    assert torch.equal(vmap(layers.linear)(x, weight, weight[:, :, 0]), vmap(F.linear)(x, weight, weight[:, :, 0]))


def test_inputs_that_all_replicas_share_need_no_copies() -> None:
    x, weight, bias = torch.randn(4, 300), torch.randn(3, 256, 300), torch.randn(3, 256)
    many = vmap(layers.linear, in_dims=(None, 0, 0))(x, weight, bias)
    torch.testing.assert_close(many, torch.stack([F.linear(x, weight[r], bias[r]) for r in range(3)]))


@pytest.mark.parametrize(("stride", "padding"), [((7, 7), 0), (7, 0), ((7, 7), 1), (1, 0)])
def test_patches_side_by_side_are_convolutions(stride: int | tuple[int, int], padding: int) -> None:
    torch.manual_seed(0)
    given = torch.randn(3, 2, 2, 14, 21), torch.randn(3, 5, 2, 7, 7), torch.randn(3, 5)
    agree(
        lambda x, w, b: layers.conv2d(x, w, b, stride, padding),
        lambda x, w, b: F.conv2d(x, w, b, stride, padding),
        *given,
    )
