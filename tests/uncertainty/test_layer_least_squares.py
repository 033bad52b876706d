import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunewald as pw
from prunewald.uncertainty import LayerLeastSquares


def test_layer_least_squares_is_wanda():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(12, 5))
    x = torch.randn(20, 2, 4, 4)
    x[:, :, 0, 0] = 0
    sigma = LayerLeastSquares().estimate(model, [(x[:10], None), (x[10:], None)])
    norms = F.unfold(x, 3, stride=2, padding=1).square().sum((0, 2)).sqrt().view(1, 2, 3, 3)
    hidden = model[:2](x).square().sum(0).sqrt()
    for name, norm in {"0.weight": norms.expand(3, 2, 3, 3), "2.weight": hidden.expand(5, 12)}.items():
        ratio = (sigma[name] * norm).detach()
        torch.testing.assert_close(ratio, ratio.flatten()[0].expand_as(ratio))
        torch.testing.assert_close(sigma[name].median(), model.get_parameter(name).detach().std())


def test_tied_weights_meet_the_inputs_of_both_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    x = torch.randn(30, 4)
    sigma = LayerLeastSquares().estimate(model, [(x, None)])
    assert list(sigma) == ["0.weight"]  # as the Pruner names it
    squares = x.square().sum(0) + model[:2](x).detach().square().sum(0)
    ratio = sigma["0.weight"] * squares.sqrt()
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))
    assert pw.Pruner(model, uncertainty=sigma).prune(0.5).sparsity == 0.5


def test_the_pruned_have_no_sigma_and_no_say_in_the_scale():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    pruner = pw.Pruner(model, criterion="magnitude")
    pruner.prune(0.5)
    x = torch.randn(30, 4)
    sigma = LayerLeastSquares().estimate(model, [(x, None)], masks=pruner.masks)
    for name, mask in pruner.masks.items():
        assert torch.equal(sigma[name].isfinite(), mask)
        living = model.get_parameter(name).detach()[mask]
        torch.testing.assert_close(sigma[name][mask].median(), living.std())


@pytest.mark.parametrize("empty", [[], [(torch.zeros(0, 2), None)]])
def test_no_samples_is_an_error(empty):
    with pytest.raises(ValueError, match="a list.*give pairs"):
        LayerLeastSquares().estimate(nn.Linear(2, 2), empty)


def test_inputs_by_keyword_are_read():
    class ByKeyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(input=x)

    model, x = ByKeyword(), torch.randn(20, 3)
    sigma = LayerLeastSquares().estimate(model, [(x,)])["layer.weight"]
    other = LayerLeastSquares().estimate(model.layer, [(x,)])["weight"]
    assert torch.equal(sigma, other)
