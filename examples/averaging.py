"""Averaged weights (EMA, SWA) of a pruned network: the copy has to be pruned as well.

PyTorch keeps the average, `torch.optim.swa_utils.AveragedModel`; `pruner.follow` zeroes in it what is pruned in the
model. An average that nobody told has old values at the pruned places.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import prunewald as pw
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy


def main() -> dict[str, float]:
    """Train, prune in the middle, train on; compare the model and two averages of it."""
    torch.manual_seed(0)
    data = fashion_mnist(seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pruner = pw.Pruner(model, optimizer)
    averaged, untold = (AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)) for _ in range(2))
    pruner.follow(averaged)

    for epoch in range(12):
        if epoch == 6:
            print(pruner.prune(0.9))  # or any other strategy
        for batch in torch.randperm(len(data.train.x)).split(100):
            optimizer.zero_grad()
            cross_entropy(model(data.train.x[batch]), data.train.y[batch]).backward()
            optimizer.step()
            averaged.update_parameters(model)
            untold.update_parameters(model)

    found: dict[str, float] = {}
    for name, net in {"model": model, "averaged": averaged, "untold": untold}.items():
        weights = [p for p in net.parameters() if p.dim() > 1]
        zeros = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
        found |= {name: accuracy(net, *data.test), f"{name} zeros": zeros}
        print(f"{name:9}  {found[name]:.1%} of the test images right, {zeros:.2%} of the weights zero")
    return found


if __name__ == "__main__":
    main()
