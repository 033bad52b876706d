"""Chunks as Ray tasks on this machine."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from prunewald.ensemble import train_many


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.2), nn.ReLU(), nn.Linear(4, 3))


def run(make=net, **options):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=g), torch.randint(0, 3, (60,), generator=g)
    common = {"epochs": 3, "seeds": range(6), "chunk": 2, "how": "vmap", "resample": "bootstrap", "progress": False}
    return train_many(make, x, y, **common | options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_killed_worker_is_retried_and_nothing_is_lost(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    driver = os.getpid()

    def fragile() -> nn.Module:
        mark = tmp_path / "killed"
        if os.getpid() != driver and torch.initial_seed() == 3 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return net()

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        told: list[int] = []
        spread = run(fragile, executor="ray", keep_optimizer=True, progress=told.append)
        on = run(executor="ray", start=spread.rows([5, 0, 0]), seeds=None, first_epoch=3)
    finally:
        ray.shutdown()
    assert (tmp_path / "killed").exists()
    assert sum(told) == 6 * 3
    here = run()
    assert spread.seeds == here.seeds
    assert torch.equal(spread.losses, here.losses)
    for name in here.params:
        assert torch.equal(spread.params[name], here.params[name])
        assert torch.equal(spread.second_moment[name], here.second_moment[name])
    whole = run(epochs=6)
    for name in here.params:
        torch.testing.assert_close(on.params[name], whole.params[name][[5, 0, 0]])


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"prunewald\[ray\]"):
        run(executor="ray")
