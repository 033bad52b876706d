"""What is kept is the same over processes as in one."""

from functools import partial

import pytest
import torch

from prunewald.ensemble.replicas import build, tensors
from prunewald.lab import choosing
from prunewald.lab.architectures import PaperCNN
from prunewald.lab.choosing import Task, choose_all
from prunewald.lab.methods import parse


def tasks() -> list[Task]:
    make = partial(PaperCNN, 0.1)
    weights: list[str] = ["fc1.weight", "fc2.weight", "fc3.weight"]
    found: list[Task] = []
    for seed in range(3):
        state = {name: tensor.detach() for name, tensor in tensors(build(make, seed)).items()}
        g = torch.Generator().manual_seed(seed)
        sigma = {name: torch.rand(state[name].shape, generator=g) for name in weights}
        alive = {name: torch.rand(state[name].shape, generator=g) > 0.2 for name in weights} if seed else None
        rows = ("abs@lamp", "moment:1@lamp", "dense")
        found += [Task(make, state, weights, parse(row), 0.9, seed, sigma, alive, "dense") for row in rows]
    return found


def test_processes_choose_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_MANY", 2)
    monkeypatch.setattr(choosing, "_EACH", 4)
    here = torch.device("cpu")
    wanted, found = choose_all(tasks(), here, spread=False), choose_all(tasks(), here, spread=True)
    assert len({sum(int(mask.sum()) for mask in one.masks.values()) for one in wanted}) == 2  # a tenth, and all
    for one, other in zip(found, wanted, strict=True):
        assert one.overlap == other.overlap
        assert one.masks.keys() == other.masks.keys()
        assert all(torch.equal(one.masks[name], other.masks[name]) for name in one.masks)
