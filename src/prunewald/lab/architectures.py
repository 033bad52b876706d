"""The networks of the paper's experiments."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PaperCNN(nn.Module):
    """The network of experiment 1: two convolutions, then 216-32-48-10; 9,660 parameters.

    The paper gives the count, the 6x6x6 map, 32 and 48; these layers are a reconstruction that fits.
    """

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 6, 4, padding=1)
        self.fc1 = nn.Linear(216, 32)
        self.fc2 = nn.Linear(32, 48)
        self.fc3 = nn.Linear(48, 10)
        self.dropout = nn.Dropout(dropout)
        _channels_last(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, 1, 28, 28)."""
        # ReLU after the pooling is the same function on a quarter of the values.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2)).flatten(1)
        x = self.dropout(F.relu(self.fc1(x)))
        x = self.dropout(F.relu(self.fc2(x)))
        logits: Tensor = self.fc3(x)
        return logits


class SmallAlexNet(nn.Module):
    """The network of experiment 2: three convolutions to 128x4x4, then 512-512-512-256-10.

    The paper gives the map and the dense layers, of 1,706,496 weights; the convolutions are a reconstruction.
    """

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = _convolutions(3, (32, "pool", 64, "pool", 128, "pool"))
        self.classifier = _dense((128 * 4 * 4, 512, 512, 512, 256, 10), dropout)
        _channels_last(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, 3, 32, 32)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


class MLP(nn.Module):
    """The network of experiment 3: 784-512-1024-512-10, of 1,455,104 weights."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.classifier = _dense((784, 512, 1024, 512, 10), dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, 1, 28, 28)."""
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class VGG11(nn.Module):
    """The network of experiment 4: VGG-11 (Simonyan & Zisserman, 2015, column A), without batch normalisation.

    The first dense layer follows the size of the images: 25.6 million dense weights at 64x64, 119.9 million at 224x224.
    Parameters are named as in torchvision, whose 224x224 weights fit but for the output layer.
    """

    def __init__(self, classes: int = 100, side: int = 64, dropout: float = 0.5) -> None:
        super().__init__()
        if side < 32 or side % 32:
            raise ValueError(
                f"side {side}: give a multiple of 32, such as 64 or 224, since VGG-11 halves it five times"
            )
        layers = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
        self.features = _convolutions(3, layers)
        self.classifier = _dense((512 * (side // 32) ** 2, 4096, 4096, classes), dropout)
        _channels_last(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, 3, side, side)."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def _convolutions(channels: int, layers: tuple[int | str, ...]) -> nn.Sequential:
    """3x3 convolutions to so many channels, each with ReLU, and poolings."""
    modules: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, int):
            modules += [nn.Conv2d(channels, layer, 3, padding=1), nn.ReLU()]
            channels = layer
        else:  # before the ReLU: the same function, a quarter of the work
            modules.insert(len(modules) - 1, nn.MaxPool2d(2))
    return nn.Sequential(*modules)


def _dense(sizes: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Dense layers, with ReLU and dropout between them."""
    modules: list[nn.Module] = []
    for size, following in pairwise(sizes):
        modules += [nn.Linear(size, following), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*modules[:-2])


def _channels_last(model: nn.Module) -> None:
    """On a CPU a quarter less time: max pooling is vectorised in this layout only."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
