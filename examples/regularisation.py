"""Regularisation towards prunability: train with a penalty, and pruning costs less.

L1 makes single weights small, for pruning them one by one; the group lasso makes all weights of a unit small together,
for pruning whole units.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import prunewald as pw
from prunewald.companions import group_lasso, l1
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy

Penalty = Callable[[Iterable[Tensor]], Tensor]
DATA = fashion_mnist(seed=0)


def train(penalty: Penalty, strength: float, pattern: str, sparsity: float) -> dict[str, float]:
    """Train with a penalty on what is to be pruned, prune, and measure before and after; no retraining."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude", pattern=pattern, targets="1")
    for _ in range(10):
        for batch in torch.randperm(len(DATA.train.x)).split(100):
            loss = cross_entropy(model(DATA.train.x[batch]), DATA.train.y[batch])
            loss = loss + strength * penalty(pruner.targets().values())  # the only line that is new
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dense = accuracy(model, *DATA.test)
    pruner.prune(sparsity)  # or any other strategy
    return {"dense": dense, "pruned": accuracy(model, *DATA.test)}


def main() -> dict[str, float]:
    """Compare: single weights with and without L1, whole units with and without the group lasso."""
    runs: dict[str, tuple[Penalty, float, str, float]] = {
        "weights, no penalty": (l1, 0.0, "element", 0.95),
        "weights, L1": (l1, 2e-4, "element", 0.95),
        "units, no penalty": (group_lasso, 0.0, "filter", 0.7),
        "units, group lasso": (group_lasso, 1e-4, "filter", 0.7),
    }
    found = {}
    for name, (penalty, strength, pattern, sparsity) in runs.items():
        shares = train(penalty, strength, pattern, sparsity)
        found[name] = shares["pruned"]
        print(f"{name:20}  dense {shares['dense']:.1%}, {sparsity:.0%} pruned {shares['pruned']:.1%}")
    return found


if __name__ == "__main__":
    main()
