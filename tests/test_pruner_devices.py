"""Odd places for tensors: no values yet, eight bits, a default device other than the model's, masks in one place."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.core.base import Offline, Online
from prunewald.strategies import Surgery
from prunewald.util.registry import known, make
from tests.training import SMALL, zeros_hold

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of", "ignore:sigma is over"),
]

CHOICES: dict[str, dict[str, Any]] = {
    **{f"{kind} {name}": {kind: name} for kind in ("criterion", "scope", "pattern") for name in sorted(known(kind))},
    **{
        f"uncertainty {name}": {"criterion": "magnitude-uncertainty", "uncertainty": SMALL.get(name, name)}
        for name, part in known("uncertainty").items()
        if issubclass(part, Online)
    },
    "schedule": {"schedule": pw.Cubic(0.5, begin=2, end=20, every=3)},
}
OFFLINE = sorted(name for name, part in known("uncertainty").items() if issubclass(part, Offline))


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A default device where nothing can be computed: whatever is made without a word on its device ends up there."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def made() -> tuple[nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    """A model on the CPU, its optimizer and its batches, made in spite of the default device."""
    with torch.device("cpu"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 4))
        return model, torch.optim.Adam(model.parameters(), lr=0.01), [torch.randn(16, 8) for _ in range(24)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor]) -> None:
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("choice", CHOICES)
def test_a_default_device_that_is_not_the_models_changes_nothing(choice, tmp_path):
    def pruned() -> pw.Pruner:
        model, optimizer, batches = made()
        pruner = pw.Pruner(model, optimizer, **CHOICES[choice])
        train(model, optimizer, batches)
        if pruner.schedule is None:
            pruner.prune(0.5)
        train(model, optimizer, batches)
        return pruner

    expected = pruned()
    torch.set_default_device("meta")
    try:
        pruner = pruned()
        assert all(torch.equal(mask, expected.masks[name]) for name, mask in pruner.masks.items())
        assert pruner.sparsity == expected.sparsity
        assert str(pruner.report) == str(expected.report)
        pruner.load_state_dict(pruner.state_dict())
        pw.save(pruner, tmp_path / "model.pw")
        pw.load(tmp_path / "model.pw", into=pruner.model)
        pw.masks.save(pruner.masks, tmp_path / "masks.pw")
        pruner.set_masks(pw.masks.load(tmp_path / "masks.pw"))
        assert zeros_hold(pruner.model, pruner)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_sigmas_do_not_depend_on_the_default_device(name, elsewhere):
    with torch.device("cpu"):
        model = nn.Sequential(nn.Linear(3, 1)).double()
        x = torch.randn(64, 3, dtype=torch.float64)
        data = [(x, x.sum(1, keepdim=True) + torch.randn(64, 1, dtype=torch.float64))]
    sigma = make("uncertainty", name).estimate(model, data, nn.functional.mse_loss)
    pw.Pruner(model, criterion="magnitude-uncertainty", uncertainty=sigma).prune(0.5)
    assert (model[0].weight == 0).any()


@pytest.mark.parametrize("level", [{"sparsity": 0.5}, {"threshold": 0.05}])
def test_a_surgery_does_not_depend_on_the_default_device(level, elsewhere):
    model, optimizer, batches = made()
    surgery = Surgery(model, optimizer, criterion="magnitude", **level)
    train(model, optimizer, batches)
    surgery.finish()
    assert surgery.sparsity > 0


def test_a_model_without_values_is_refused_by_name_until_it_has_some():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"'0.weight'.*meta.*to_empty"):
        pw.Pruner(model, criterion="magnitude")
    filled = model.to_empty(device="cpu")
    filled.load_state_dict(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).state_dict())
    assert pw.Pruner(filled, criterion="magnitude").prune(0.5).sparsity == 0.5


def test_only_what_is_pruned_has_to_have_values():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    assert pw.Pruner(model, criterion="magnitude", ignore="1").prune(0.5).sparsity == 0.5


def test_weights_of_eight_bits_are_refused_with_the_way_out():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[1].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ValueError, match=r"'1.weight'.*float8_e4m3fn.*bfloat16"):
        pw.Pruner(model, criterion="magnitude")
    pw.Pruner(model, criterion="magnitude", ignore="1").prune(0.5)


def test_masks_stay_where_they_are_in_memory():
    """A captured CUDA graph goes on reading from there."""
    model, optimizer, batches = made()
    pruner = pw.Pruner(model, optimizer)
    train(model, optimizer, batches)
    pruner.prune(0.5)
    places = {name: mask.data_ptr() for name, mask in pruner.zeros.alive.items()}
    train(model, optimizer, batches)
    pruner.prune(0.8)
    state = pruner.state_dict()
    pruner.set_masks({name: torch.ones_like(mask) for name, mask in pruner.masks.items()})
    assert pruner.sparsity == 0
    pruner.load_state_dict(state)
    assert {name: mask.data_ptr() for name, mask in pruner.zeros.alive.items()} == places
    assert pruner.sparsity == pytest.approx(0.8, abs=0.01)
