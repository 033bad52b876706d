"""Accelerate: a Pruner in a loop with gradient accumulation, and a run that goes on from a checkpoint.

`accelerate launch examples/accelerate_training.py` starts it in several processes, where every one prunes alike. What
is trained here is small: a network of two layers on Fashion-MNIST, pruned gradually to 90 % while it trains.
"""

import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from prunewald.integrations.accelerate import attach
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy

EPOCHS, ACCUMULATE = 6, 2


def parts(accelerator: Accelerator) -> Any:
    """What prepare() gives, for data, a model and an optimizer made anew."""
    data = DataLoader(TensorDataset(*fashion_mnist(seed=0).train), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    return accelerator.prepare(data, model, torch.optim.Adam(model.parameters(), lr=2e-3))


def main() -> dict[str, float]:
    """Train half of the epochs, save, and go on in objects made anew."""
    torch.manual_seed(0)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for half in (1, 2):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
            batches, model, optimizer = parts(accelerator)
            steps = EPOCHS * len(batches) // ACCUMULATE
            pruner = attach(accelerator, model, optimizer, schedule="cubic", total_steps=steps)
            if half == 2:
                accelerator.load_state(folder)
            for _ in range(EPOCHS // 2):
                for x, y in batches:
                    with accelerator.accumulate(model):
                        accelerator.backward(cross_entropy(model(x), y))
                        optimizer.step()
                        optimizer.zero_grad()
            found[f"sparsity, half {half}"] = pruner.sparsity
            accelerator.save_state(folder)
    found["accuracy"] = accuracy(accelerator.unwrap_model(model), *fashion_mnist(seed=0).test)
    for name, share in found.items():
        accelerator.print(f"{name:16}  {share:.1%}")
    return found


if __name__ == "__main__":
    main()
