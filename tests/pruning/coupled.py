"""Small models with coupled layers, and a loop that trains them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunewald as pw


def cnn() -> nn.Sequential:
    """Two convolutions with BatchNorm, the second without a bias, and a head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


class Forked(nn.Module):
    """A concatenation, a depthwise and a grouped convolution, and a way around."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(14)
        self.depthwise = nn.Conv2d(14, 14, 3, padding=1, groups=14)
        self.point = nn.Conv2d(14, 16, 1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        x = F.relu(self.norm(torch.cat([self.left(x), self.right(x)], 1)))
        x = F.relu(self.point(F.relu(self.depthwise(x))))
        logits: Tensor = self.head(F.relu(x + self.grouped(x)).mean((2, 3)))
        return logits


X = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(16) % 4


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """A plain loop."""
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer whose weight decay and momentum move what nobody holds."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def held(pruner: pw.Pruner, model: nn.Module | None = None) -> int:
    """How many entries of biases and norms are held, after a check that all that is pruned is zero."""
    params = dict((model or pruner.model).named_parameters())
    for name, mask in {**pruner.masks, **pruner.beside}.items():
        assert not params[name][~mask].count_nonzero(), name
    return sum(int((~mask).sum()) for mask in pruner.beside.values())
