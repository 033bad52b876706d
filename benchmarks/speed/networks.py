"""What is made faster: four networks with random weights, and what they are pruned to."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunewald as pw
from prunewald.lab.architectures import MLP

CLASSES = 10


class VGG(nn.Module):
    """VGG-11 for images of 32x32 as it is common: eight convolutions with BatchNorm, then 512-512-10."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        channels = 3
        for size in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            if size:
                parts += [nn.Conv2d(channels, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU()]
                channels = size
            else:
                parts.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*parts)
        self.hidden, self.fc = nn.Linear(512, 512), nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, 3, 32, 32)."""
        logits: Tensor = self.fc(F.relu(self.hidden(self.features(x).flatten(1))))
        return logits


class ResNet18(nn.Module):
    """ResNet-18 for images of 32x32 as it is common: a first convolution of 3x3, and no pooling after it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        channels = 64
        for size, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(channels, size, stride), Block(size, size, 1)]
            channels = size
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, 3, 32, 32)."""
        logits: Tensor = self.fc(self.blocks(F.relu(self.norm(self.conv(x)))).mean((2, 3)))
        return logits


class Block(nn.Module):
    """Two convolutions and a way around them: a convolution of 1x1 where the shape changes."""

    def __init__(self, channels: int, size: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, size, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(size, size, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(size), nn.BatchNorm2d(size)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or channels != size:
            self.around = nn.Sequential(nn.Conv2d(channels, size, 1, stride, bias=False), nn.BatchNorm2d(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features that come out."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.around(x))


def _bert() -> nn.Module:
    """Four layers of width 256 as Hugging Face has them, for sequences of 64 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=64, return_dict=False,
    )  # fmt: skip
    config.num_labels = CLASSES
    made: nn.Module = BertForSequenceClassification(config)
    return made


@dataclass(frozen=True)
class Network:
    """One network, what it is given, and to which levels it is pruned: weights, or whole channels or units."""

    title: str
    make: Callable[[], nn.Module]
    example: Callable[[int], Tensor]
    levels: tuple[float, ...]
    head: str
    whole: bool

    def pruned(self, level: float) -> pw.Pruner:
        """The network in evaluation, pruned by magnitude."""
        torch.manual_seed(0)
        model = self.make()
        with torch.no_grad():
            for _ in range(3):  # for BatchNorm's statistics, which are read in evaluation
                model.train()(self.example(16))
        model.eval()
        chosen: dict[str, Any] = {"pattern": pw.Filter(), "ignore": self.head} if self.whole else {}
        pruner = pw.Pruner(model, criterion="magnitude", **chosen)
        if self.whole:
            pruner.prune(level, example_inputs=self.example(2), of="filters")
        else:
            pruner.prune(level)
        return pruner


def _images(channels: int, side: int, count: int) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(1))


def _tokens(count: int) -> Tensor:
    return torch.randint(4096, (count, 64), generator=torch.Generator().manual_seed(1))


_FEW, _SOME = (0.3, 0.5, 0.7), (0.5, 0.8, 0.9, 0.95, 0.99)
_COLOURED = partial(_images, 3, 32)
NETWORKS = {
    "mlp": Network("MLP 784-512-1024-512-10", MLP, partial(_images, 1, 28), _SOME, "classifier.9", False),
    "vgg": Network("VGG-11, 32x32, channels", VGG, _COLOURED, _FEW, "fc", True),
    "resnet": Network("ResNet-18, 32x32, channels", ResNet18, _COLOURED, _FEW, "fc", True),
    "bert": Network("BERT 4 x 256, 64 tokens, weights", _bert, _tokens, (0.5, 0.9), "classifier", False),
    "bert-units": Network("BERT 4 x 256, 64 tokens, heads and units", _bert, _tokens, _FEW, "classifier", True),
}
