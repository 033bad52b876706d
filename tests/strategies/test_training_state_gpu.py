"""On a CUDA device: what a folder keeps comes back to the device, with its random numbers."""

from typing import Any

import pytest
import torch

import prunewald as pw
from prunewald.strategies import BudgetError, find_sparsity, iterative
from tests.resuming import same
from tests.strategies.helpers import Work, trained
from tests.strategies.runs import LEVELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CHOICES: dict[str, Any] = {
    "rolling": {"uncertainty": pw.PseudoBootstrap(last=10)},
    "window": {"uncertainty": pw.PseudoBootstrap(last=5, total_steps=12)},
    "batch-means": {"uncertainty": pw.BatchMeans(length=3)},
    "adam": {"optimizer": lambda params: torch.optim.Adam(params, lr=0.01, fused=True)},
    "captured": {"optimizer": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.01), capturable=True)},
    "movement": {"criterion": "movement"},
    "wanda": {"criterion": "wanda"},
    "snip": {"criterion": "snip"},
}


def on_gpu(choice: str, seed: int = 0) -> Work:
    return trained(seed=seed, device="cuda", **CHOICES[choice])


@pytest.mark.filterwarnings("ignore:standard errors from")
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("lr", [None, 0.3])
def test_a_run_goes_on_exactly(choice, lr, tmp_path):
    whole = on_gpu(choice)
    iterative(whole.pruner, LEVELS, whole.train, lr_factor=lr)
    expected, cuda = whole.state(), torch.cuda.get_rng_state()
    failed = on_gpu(choice)

    def train(one):
        if one.index == 3:
            failed.steps(5)
            raise KeyboardInterrupt
        failed.train(one)

    with pytest.raises(KeyboardInterrupt):
        iterative(failed.pruner, LEVELS, train, lr_factor=lr, folder=tmp_path)
    fresh = on_gpu(choice, seed=1)
    iterative(fresh.pruner, LEVELS, fresh.train, lr_factor=lr, folder=tmp_path)
    assert fresh.trained == [0.7, 0.8]
    for part, value in fresh.state().items():
        assert same(value, expected[part]), part
    assert torch.equal(torch.cuda.get_rng_state(), cuda)


@pytest.mark.filterwarnings("ignore:standard errors from")
@pytest.mark.parametrize("choice", CHOICES)
def test_a_search_goes_back_exactly(choice):
    work = on_gpu(choice)
    before = work.state()
    with pytest.raises(BudgetError):
        find_sparsity(work.pruner, work.train, lambda: -work.pruner.sparsity, budget=0.1, levels=LEVELS)
    for part, value in work.state().items():
        assert same(value, before[part]), part
