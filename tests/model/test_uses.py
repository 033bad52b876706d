"""Multiplications, counted by hand."""

import pytest
import torch
from torch import Tensor, nn

from prunewald.model.uses import uses


class Recurrent(nn.Module):
    """An LSTM over five steps, and a head on the last."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def test_convolutions_and_linear_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(192, 5),
    )
    found = uses(model, torch.zeros(7, 2, 8, 8))
    assert found == {"0.weight": 16, "1.weight": 16, "3.weight": 1}


def test_recurrent_layers_use_each_weight_once_a_step() -> None:
    found = uses(Recurrent(), torch.zeros(6, 5, 3))
    names = [
        f"lstm.weight_{kind}_l{layer}{way}" for layer in (0, 1) for way in ("", "_reverse") for kind in ("ih", "hh")
    ]
    assert found == dict.fromkeys(names, 5) | {"head.weight": 1}


def test_a_shared_weight_counts_wherever_it_is_used() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    assert uses(model, {"input": torch.zeros(3, 2, 6)}) == {"0.weight": 4}


def test_what_cannot_be_called_is_said_and_leaves_no_hook() -> None:
    model = nn.Sequential(nn.Linear(6, 6))
    model.train()
    with pytest.raises(ValueError, match=r"shape \(2, 5\).*Sequential.*a tuple or a dict"):
        uses(model, torch.zeros(2, 5))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
