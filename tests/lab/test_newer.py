from typing import Any

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.ensemble import AdamW, train_many
from prunewald.lab.networks import optimizer_of
from prunewald.lab.newer import ResNet8, Transformer
from prunewald.lab.settings import CONTEST

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", [ResNet8, Transformer])
@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32)])
def test_logits_of_images(kind: type[nn.Module], channels: int, side: int) -> None:
    model = kind(channels, side, 7)
    assert model(torch.rand(5, channels, side, side)).shape == (5, 7)


@pytest.mark.parametrize("kind", [ResNet8, Transformer])
def test_many_are_trained_together_as_each_alone(kind: type[nn.Module]) -> None:
    x, y = torch.rand(12, 1, 28, 28), torch.arange(12) % 3
    given: dict[str, Any] = {
        "seeds": [0, 1],
        "epochs": 1,
        "batch_size": 6,
        "optimizer": AdamW(lr=1e-3),
        "progress": False,
    }
    together, alone = (train_many(lambda: kind(1, 28, 3, 0.0), x, y, how=how, **given) for how in ("vmap", "loop"))
    assert together.how == "vmap"
    for name, tensor in together.state.items():
        torch.testing.assert_close(tensor, alone.state[name], rtol=1e-2, atol=3e-3)


def test_weights_that_are_pruned_leave_out_positions_and_norms() -> None:
    for model, kinds in (
        (ResNet8(1, 28, 10), {"conv", "around", "fc"}),
        (Transformer(1, 28, 10), {"patches", "fc", "out"}),
    ):
        with pw.Pruner(model, criterion="magnitude") as pruner:
            names = list(pruner.targets())
        assert not any("norm" in name or "position" in name for name in names)
        assert all(any(kind in name for name in names) for kind in kinds)


def test_optimizers_of_the_contest() -> None:
    assert repr(optimizer_of(CONTEST["resnet"], 3.0)) == repr(AdamW(lr=3e-3, weight_decay=0.01))
    assert optimizer_of(CONTEST["fashion-mnist-sgd"]).build([torch.zeros(1)]).defaults["momentum"] == 0.9
    assert type(optimizer_of(CONTEST["mnist"])).__name__ == "RMSprop"
