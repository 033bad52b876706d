"""What each weight of a layer multiplies, against the derivative of the layer itself."""

import pytest
import torch
from torch import nn

from prunewald.model.inputs import rows_met, squares_met
from prunewald.model.layouts import Layout
from tests.model.helpers import CONVOLUTIONS, TRANSPOSED


def _check_rows(module, x, weight, *args):
    """What the rows of the weight make of the rows of inputs is what the layer gives, position by position."""
    met = rows_met(module, (x, *args), {})
    rows = weight.detach().unflatten(0, (len(met), -1)).flatten(2)
    product = torch.einsum("gnd,grd->ngr", met, rows).flatten(1) + module.bias
    output = module(x, *args)
    last = output if isinstance(module, nn.Linear) else output.movedim(-len(module.kernel_size) - 1, -1)
    torch.testing.assert_close(product, last.reshape(-1, last.shape[-1]), rtol=1e-5, atol=1e-5)
    return met


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_the_rows_that_a_convolution_meets(case):
    module, shape = CONVOLUTIONS[case]
    met = _check_rows(module, torch.randn(shape), module.weight)
    assert met.shape[0] == module.groups


@pytest.mark.parametrize("case", TRANSPOSED)
def test_the_rows_that_a_transposed_convolution_meets(case):
    module, shape = TRANSPOSED[case]
    _check_rows(module, torch.randn(shape), Layout(transposed=True, groups=module.groups).swap(module.weight))


def test_the_rows_of_an_output_size_that_the_caller_chose():
    module = nn.ConvTranspose2d(3, 4, 3, stride=3)
    _check_rows(module, torch.randn(2, 3, 4, 5), Layout(transposed=True).swap(module.weight), [13, 17])


@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 5, 6), (0, 6)], ids=str)
def test_the_rows_that_a_linear_layer_meets(shape):
    module = nn.Linear(6, 4)
    _check_rows(module, torch.randn(shape), module.weight)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_every_convolution_sums_what_each_weight_meets(case):
    module, shape = CONVOLUTIONS[case]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    met = squares_met(module, (x,), {})
    assert met.shape == (module.groups, *module.weight.shape[1:])
    # A layer is linear in its weight: its summed output at x² has as derivative the sum of x² that each meets.
    weight = torch.zeros_like(module.weight, dtype=torch.float64, requires_grad=True)
    module._conv_forward(x.double().square(), weight, None).sum().backward()
    expected = weight.grad.unflatten(0, (module.groups, -1))
    assert torch.equal(expected, expected[:, :1].expand_as(expected)), "the rows of a group are alike"
    torch.testing.assert_close(met, expected[:, 0].float(), rtol=1e-5, atol=1e-5)


def test_padding_that_was_changed_after_the_layer_was_made():
    module = nn.Conv2d(1, 1, 3)
    module.padding, module.dilation = (2, 2), (2, 2)  # as segmentation models do
    assert float(squares_met(module, (torch.ones(1, 1, 6, 6),), {})[0, 0, 1, 1]) == 36.0


@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 5, 6), (0, 6)], ids=str)
def test_a_linear_layer_sums_over_all_but_the_last_dimension(shape):
    x = torch.randn(shape)
    met = squares_met(nn.Linear(6, 4), (), {"input": x})
    torch.testing.assert_close(met, x.double().reshape(-1, 6).square().sum(0).float()[None])


@pytest.mark.parametrize(("given", "summed"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_sums_are_in_at_least_float32(given, summed):
    x = torch.full((512, 2), 0.1).to(given)  # in bfloat16 a sum of these would stand still
    met = squares_met(nn.Linear(2, 1), (x,), {})
    assert met.dtype == summed
    torch.testing.assert_close(met, x.to(summed).square().sum(0)[None])
