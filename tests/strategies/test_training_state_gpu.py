"""On a CUDA device: what a folder keeps comes back to the device, with its random numbers."""

from typing import Any

import pytest
import torch

import prunewald as pw
from tests.resuming import same
from tests.strategies.helpers import Work
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


def trained(choice: str, seed: int = 0) -> Work:
    work = Work(seed, device="cuda", **CHOICES[choice])
    work.steps(12)
    return work


@pytest.mark.filterwarnings("ignore:standard errors from")
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("lr", [None, 0.3])
def test_a_run_goes_on_exactly(choice, lr, tmp_path):
    whole = trained(choice)
    pw.iterative(whole.pruner, LEVELS, whole.train, lr=lr)
    expected, cuda = whole.state(), torch.cuda.get_rng_state()
    failed = trained(choice)

    def train(one):
        if one.index == 3:
            failed.steps(5)
            raise KeyboardInterrupt
        failed.train(one)

    with pytest.raises(KeyboardInterrupt):
        pw.iterative(failed.pruner, LEVELS, train, lr=lr, folder=tmp_path)
    fresh = trained(choice, seed=1)
    pw.iterative(fresh.pruner, LEVELS, fresh.train, lr=lr, folder=tmp_path)
    assert fresh.trained == [0.7, 0.8]
    for part, value in fresh.state().items():
        assert same(value, expected[part]), part
    assert torch.equal(torch.cuda.get_rng_state(), cuda)


@pytest.mark.filterwarnings("ignore:standard errors from")
@pytest.mark.parametrize("choice", CHOICES)
def test_a_search_goes_back_exactly(choice):
    work = trained(choice)
    before = work.state()
    with pytest.raises(pw.BudgetError):
        pw.find_sparsity(work.pruner, work.train, lambda: -work.pruner.sparsity, budget=0.1, levels=LEVELS)
    for part, value in work.state().items():
        assert same(value, before[part]), part
