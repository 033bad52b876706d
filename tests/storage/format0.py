"""What the committed files of format 0 hold. They were written by the last prunewald that wrote that format."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .helpers import holding, pruner

MODEL = Path(__file__).with_name("format0.bin")
MASKS = Path(__file__).with_name("format0-masks.bin")


def model() -> nn.Module:
    """Masked, sparse and dense tensors of several dtypes, two of them tied."""
    weight = (torch.arange(-60.0, 60).view(10, 12) / 7).masked_fill(~masks()["weight"], 0.0)
    weight[0, 0] = float("nan")
    half = torch.zeros(500, dtype=torch.bfloat16)
    half[::50] = torch.arange(10).bfloat16() - 0.5
    return holding(
        weight=weight,
        tied=weight,
        halves=half,
        minus=torch.tensor(-0.0),
        flags=torch.arange(9).view(3, 3) % 2 == 0,
        steps=torch.tensor(12345678901),
        empty=torch.zeros(0, 3),
        zeros=torch.zeros(2000, dtype=torch.float64),
    )


def masks() -> dict[str, Tensor]:
    """As the model's file and the file of masks have them."""
    return {"weight": (torch.arange(120) % 4 == 0).view(10, 12)}


def pruned() -> Any:
    """The pruner that was saved."""
    return pruner(model(), masks())
