"""What is differentiated: samples that count, in pieces of bounded size."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prunewald.model.modules import evaluating
from prunewald.uncertainty import FisherDiagonal, InverseFisher, Sandwich, SGDAsymptotic
from prunewald.uncertainty import analytic as analytic_module
from prunewald.uncertainty.curvature import pose
from tests.uncertainty.test_batches import Streamed

pytestmark = pytest.mark.usefixtures("one_thread")

ESTIMATORS = [InverseFisher(inverse="damped"), Sandwich(inverse="damped"), FisherDiagonal(), FisherDiagonal("model")]


@pytest.mark.parametrize("estimator", [*ESTIMATORS, SGDAsymptotic()], ids=repr)
def test_nothing_to_estimate_is_an_error(estimator):
    batch = (torch.randn(8, 4), torch.zeros(8).long())
    with pytest.raises(ValueError, match="Linear.*set requires_grad"):
        estimator.estimate(nn.Linear(4, 3).requires_grad_(False), [batch], F.cross_entropy)
    ignored = (batch[0], batch[1] - 100)
    for empty in ([], [(batch[0][:0], batch[1][:0])], [ignored]):
        with pytest.raises(ValueError, match="a list.*give pairs of inputs"):
            estimator.estimate(nn.Linear(4, 3), empty, F.cross_entropy)


def deep(layers):
    torch.manual_seed(0)
    stack = [part for _ in range(layers) for part in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(*stack).double(), (torch.randn(20, 8).double(), torch.randint(0, 8, (20,)))


@pytest.mark.parametrize("masked", [False, True])
def test_a_block_of_the_hessian_is_that_of_the_whole(masked):
    model, (x, y) = deep(2)
    params = {name: p.detach() for name, p in model.named_parameters()}

    def total(p):
        return F.cross_entropy(functional_call(model, p, (x,)), y, reduction="sum")

    whole = hessian(total)(params)
    masks = {"2.weight": torch.rand(8, 8) < 0.5} if masked else {}
    problem = pose(model, [(x[:15], y[:15]), (x[15:], y[15:])], F.cross_entropy, masks)
    found = problem.means(("2.weight", "2.bias"), observed=True)
    block = 20 * (found.root.T @ found.root + found.bend)
    alive = torch.cat([masks.get("2.weight", torch.ones(8, 8).bool()).flatten(), torch.ones(8).bool()])
    rows = [torch.cat([whole[a][b].flatten(params[a].dim()) for b in ("2.weight", "2.bias")], -1) for a in whole][2:]
    expected = torch.cat([row.reshape(-1, 72) for row in rows])[alive][:, alive]
    torch.testing.assert_close(block, expected, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that was made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor))])
        return made


@pytest.mark.parametrize("observed", [False, True])
def test_blocks_need_no_more_memory_in_a_larger_model(observed, monkeypatch):
    monkeypatch.setattr(analytic_module, "_FULL", 100)
    sizes = []
    for layers in (2, 6):
        model, batch = deep(layers)
        with Largest() as largest:
            InverseFisher(inverse="damped", observed=observed).estimate(model, [batch], F.cross_entropy)
        sizes.append(largest.size)
    assert sizes[0] == sizes[1]
    monkeypatch.setattr(analytic_module, "_FULL", 20_000)
    with Largest() as largest:
        InverseFisher(inverse="damped", observed=observed).estimate(model, [batch], F.cross_entropy)
    assert largest.size > sizes[1]


def test_fewer_columns_at_a_time_need_less_memory_and_change_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    problem = pose(model, [(torch.randn(20, 8).double(), torch.randn(20, 1).double())], F.mse_loss, None)
    found, sizes = [], []
    for columns in (4, 72):
        with evaluating(model), Largest() as largest:
            found.append(replace(problem, columns=columns).means(("0.weight", "0.bias"), observed=True).bend)
        sizes.append(largest.size)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_every_block_is_a_pass_and_no_pass_keeps_the_data(loss, observed, monkeypatch):
    monkeypatch.setattr(analytic_module, "_FULL", 25)
    gc.collect()
    loader = Streamed(loss)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    sigmas = InverseFisher(inverse="damped", observed=observed).estimate(model, loader, loss)
    assert [len(block.params) for block in sigmas.diagnosis.blocks] == [2, 2]
    assert loader.passes == 2 + (loss == "squared_error"), "squared errors need the variance of the residuals first"
    assert loader.most <= 3, f"{loader.most} of 12 batches were in memory at once"
    assert sigmas.diagnosis.samples == 96
