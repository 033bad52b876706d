"""PEFT: a pruned base, LoRA adapters that repair it, and a merged model that is as sparse and computes the same.

A network is trained on five classes of Fashion-MNIST's ten, pruned to 90 %, and adapted to all ten: only the adapters
learn. Without mask_adapters the merge fills the zeros; with it they stay, and so do the outputs.
"""

import copy

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import prunewald as pw
from prunewald.integrations.peft import mask_adapters
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy, train


def zeros(model: nn.Module) -> float:
    """The share of zeros in all weights."""
    weights = [param for param in model.parameters() if param.dim() == 2]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def main() -> dict[str, float]:
    """Adapt a pruned base, with the masks and without."""
    torch.manual_seed(0)
    images = fashion_mnist(seed=0)
    x, y = images.train
    base = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    train(base, torch.optim.Adam(base.parameters(), lr=1e-3), x[y < 5], y[y < 5], epochs=5)
    found: dict[str, float] = {}
    for how in ("masked", "unmasked"):
        config = LoraConfig(r=8, target_modules=["1", "3"], lora_dropout=0.05)
        model = get_peft_model(copy.deepcopy(base), config)
        optimizer = torch.optim.Adam([param for param in model.parameters() if param.requires_grad], lr=2e-3)
        pruner = pw.Pruner(model, optimizer, criterion="magnitude")
        if how == "masked":
            mask_adapters(model, pruner)
        report = pruner.prune(0.9)
        found["pruned"] = accuracy(model, *images.test)
        train(model, optimizer, x, y, epochs=5)
        found[f"{how}, adapted"] = accuracy(model, *images.test)
        outputs = model.eval()(images.test[0]).detach()
        merged = model.merge_and_unload()
        found[f"{how}, merged zeros"] = zeros(merged)
        found[f"{how}, outputs moved by"] = float((merged(images.test[0]) - outputs).abs().max())
    print(report)
    for name, number in found.items():
        print(f"{name:26}  {number:.1e}" if "moved" in name else f"{name:26}  {number:.1%}")
    return found


if __name__ == "__main__":
    main()
