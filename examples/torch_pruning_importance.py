"""Torch-Pruning removes half of all channels: which ones, by their weights' size or by the squared Wald statistic.

Removal makes new parameters, so a new optimizer trains the smaller network. Over four seeds 82.8 % of the test images
are right instead of 82.0 %, with a quarter to a third of the weights (dense 83.5 %); four are too few to say more.
"""

import copy

import torch
import torch_pruning as tp
from torch import nn

import prunewald as pw
from prunewald.integrations.torch_pruning import WaldImportance
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy, train


def network() -> nn.Sequential:
    """Two convolutions with BatchNorm, and a layer that reads a flattened map."""
    convolutions = [nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    convolutions += [nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 36, 10))


def main() -> dict[str, float]:
    """Train, remove channels by either importance, and train on."""
    torch.manual_seed(0)
    data = fashion_mnist(seed=0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, *data.train, epochs=3)
    found = {"dense": accuracy(model, *data.test)}
    weights = sum(p.numel() for p in model.parameters())

    for name in ("magnitude", "wald"):
        small, its_optimizer = copy.deepcopy((model, optimizer))
        pruner = pw.Pruner(small, its_optimizer, criterion=name)
        importance = WaldImportance(pruner)
        tp.pruner.BasePruner(
            small, data.train.x[:2], importance, pruning_ratio=0.5, global_pruning=True, ignored_layers=[small[-1]]
        ).step()
        train(small, torch.optim.Adam(small.parameters(), lr=1e-3), *data.train, epochs=3)
        found[name] = accuracy(small, *data.test)
        found[f"{name}, size"] = sum(p.numel() for p in small.parameters()) / weights
    for name, share in found.items():
        print(f"{name:16}  {share:.1%}")
    return found


if __name__ == "__main__":
    main()
