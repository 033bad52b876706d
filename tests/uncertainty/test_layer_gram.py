"""The layer-wise Wald statistic against what pruning a weight and refitting the others costs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.uncertainty import LayerGram, LayerLeastSquares, layer_gram


def correlated(n=200, width=6):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, width, generator=generator) @ torch.randn(width, width, generator=generator)
    return x + 2.0


@pytest.mark.parametrize("bias", [False, True])
def test_the_statistic_is_what_the_squared_error_rises_by_when_a_weight_goes_and_the_others_are_refitted(bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 4, bias=bias), correlated()
    sigma = LayerGram(damping=1e-9).estimate(layer, [(x[:120],), (x[120:],)])["weight"]
    raw = torch.cat([x, torch.ones(200, 1)], 1).double() if bias else x.double()
    y = layer(x).detach().double()
    rises = torch.zeros(4, 6, dtype=torch.float64)
    for gone in range(6):
        others = raw[:, [at for at in range(raw.shape[1]) if at != gone]]
        rises[:, gone] = (y - others @ torch.linalg.lstsq(others, y).solution).square().sum(0)
    ratio = (layer.weight / sigma).detach().double().square() / rises
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio), rtol=1e-3, atol=0)
    torch.testing.assert_close(sigma.median(), layer.weight.detach().std())


def test_without_correlations_it_is_the_diagonal_one():
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(50, 6)).Q * torch.logspace(-1, 1, 6)
    layer = nn.Linear(6, 4, bias=False)
    full, diagonal = (one.estimate(layer, [(x,)])["weight"] for one in (LayerGram(1e-9), LayerLeastSquares()))
    torch.testing.assert_close(full, diagonal, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_by_group_and_in_pieces(groups, monkeypatch):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(4, 6, 3, padding=1, groups=groups, bias=False), torch.randn(5, 4, 6, 6)
    sigma = LayerGram().estimate(layer, [(x,)])["weight"]
    monkeypatch.setattr(layer_gram, "_PIECE", 2 * 36 * 36)
    torch.testing.assert_close(LayerGram().estimate(layer, [(x,)])["weight"], sigma)
    for group in range(groups):
        part = x[:, 4 // groups * group : 4 // groups * (group + 1)]
        rows = F.unfold(part, 3, padding=1).mT.flatten(0, 1).double()
        gram = rows.T @ rows
        inverse = torch.linalg.inv(gram + 0.01 * gram.diagonal().mean() * torch.eye(len(gram)))
        ratio = sigma[6 // groups * group].flatten().double() / inverse.diagonal().sqrt()
        torch.testing.assert_close(ratio, ratio[0].expand_as(ratio), rtol=1e-4, atol=0)


def test_what_meets_nothing_or_is_pruned_has_no_sigma():
    layer, x = nn.Linear(6, 4), correlated()
    x[:, 2] = 0
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1, 3] = False
    sigma = LayerGram().estimate(layer, [(x,)], masks={"weight": mask})["weight"]
    finite = mask.clone()
    finite[:, 2] = False
    assert torch.equal(sigma.isfinite(), finite)
    assert not LayerGram().estimate(layer, [(0 * x,)])["weight"].isfinite().any()


def test_a_damping_of_nothing_is_refused():
    with pytest.raises(ValueError, match="damping=0"):
        LayerGram(damping=0)
