"""BatchNorm after pruning: its running means and variances are those of the dense network, so measure them again.

`pw.recalibrate` needs a few batches, no labels and no gradients. `torch.optim.swa_utils.update_bn` does the same, but
with dropout on.
"""

import torch
from torch import nn

import prunewald as pw
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy, train


def main() -> dict[str, float]:
    """Prune, and compare the accuracy with old and new statistics."""
    torch.manual_seed(0)
    data = fashion_mnist(seed=0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 100, bias=False),
        nn.BatchNorm1d(100),
        nn.ReLU(),
        nn.Linear(100, 50, bias=False),
        nn.BatchNorm1d(50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, *data.train, epochs=10)
    found = {"dense": accuracy(model, *data.test)}

    pw.Pruner(model, optimizer).prune(0.9)  # or any other strategy
    found["pruned"] = accuracy(model, *data.test)

    pw.recalibrate(model, data.train.x.split(100))
    found["recalibrated"] = accuracy(model, *data.test)
    for name, share in found.items():
        print(f"{name:12}  {share:.1%} of the test images right")
    return found


if __name__ == "__main__":
    main()
