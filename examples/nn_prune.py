"""torch.nn.utils.prune with tau in place of |w|: your loop of pruning and training stays as it is, hooks and all.

At the end a Pruner takes the masks over: the model is plain again, its state_dict too, and its zeros are held.
"""

import torch
from torch import nn
from torch.nn.utils import prune

from prunewald.integrations import nn_prune
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy, train


def pruned(by_uncertainty: bool) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Prune to 97 % in five rounds, each half of what is left, by |w| or by tau."""
    torch.manual_seed(0)
    data = fashion_mnist(seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, *data.train, epochs=5)
    places = [(model[1], "weight"), (model[3], "weight")]
    for _ in range(5):
        if by_uncertainty:
            scores = nn_prune.parameter_scores(places, sigma=optimizer)  # the only line that is new
            prune.global_unstructured(places, prune.L1Unstructured, scores, amount=0.5)
        else:
            prune.global_unstructured(places, prune.L1Unstructured, amount=0.5)
        train(model, optimizer, *data.train, epochs=1)
    return model, optimizer


def main() -> dict[str, float]:
    """Compare the two, take over the masks of the second, and prune on with a Pruner."""
    data = fashion_mnist(seed=0)
    found = {"magnitude": accuracy(pruned(False)[0], *data.test)}
    model, optimizer = pruned(True)
    found["tau"] = accuracy(model, *data.test)

    pruner = nn_prune.take_over(model, optimizer)
    found["sparsity taken over"] = pruner.sparsity
    pruner.prune(0.98)  # of the total
    train(model, optimizer, *data.train, epochs=3)
    found["tau, 98 %"] = accuracy(model, *data.test)
    found["sparsity"] = pruner.sparsity
    for name, share in found.items():
        print(f"{name:20}  {share:.1%}")
    return found


if __name__ == "__main__":
    main()
