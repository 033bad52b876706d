"""Networks of the contest that the paper does not have: one with BatchNorm, and a transformer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResNet8(nn.Module):
    """He et al. (2016): three residual blocks of 16, 32 and 64 channels, BatchNorm after each convolution."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, channels, side, side)."""
        x = self.blocks(F.relu(self.norm(self.conv(x)))).mean((2, 3))
        logits: Tensor = self.fc(self.dropout(x))
        return logits


class Block(nn.Module):
    """Two convolutions, and a way around them: a convolution of 1x1 where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        same = channels == out and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features that come out."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.around(x))


class Transformer(nn.Module):
    """A small vision transformer (Dosovitskiy et al., 2021): 16 patches of an image, two blocks of width 64."""

    def __init__(self, channels: int, side: int, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 64, side // 4, side // 4)
        self.position = nn.Parameter(0.02 * torch.randn(16, 64))
        self.blocks = nn.Sequential(*(Attending(64, 4, dropout) for _ in range(2)))
        self.norm = nn.LayerNorm(64)
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (n, channels, side, side)."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.fc(self.norm(self.blocks(x)).mean(1))
        return logits


class Attending(nn.Module):
    """Self-attention and two dense layers, each after a LayerNorm and beside a way around it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens (n, tokens, width) that come out."""
        x = x + self.dropout(self._attention(self.norm1(x)))
        tokens: Tensor = x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))
        return tokens

    def _attention(self, x: Tensor) -> Tensor:
        """In plain operations, which can be done for many networks at once."""
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(2, 3) / query.shape[3] ** 0.5).softmax(3)
        found: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return found
