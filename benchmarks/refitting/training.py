"""Dense networks, trained once and kept with their optimizers."""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.refitting.examples import Task, epoch, score, task
from benchmarks.refitting.networks import NETWORKS, Network
from prunewald.util.files import read_torch, replacing


def file_of(out: Path, name: str, seed: int) -> Path:
    """Where a trained network is kept."""
    return out / "networks" / f"{name}-{seed:02}.pt"


def fresh(network: Network, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network before training, and its optimizer."""
    torch.manual_seed(seed)
    model = network.make()
    return model, network.optimizer(model.parameters(), lr=network.lr)


def train(name: str, seed: int, task: Task, out: Path) -> None:
    """Train one network and keep it."""
    network = NETWORKS[name]
    model, optimizer = fresh(network, seed)
    began = time.process_time()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(network.epochs):
        epoch(model, optimizer, task.train, network.batch, generator)
    settle(model, task, seed)
    seconds = time.process_time() - began
    dense = score(model, task.test)
    print(f"{name} {seed}: {dense['accuracy']:.2f} %, {dense['bits']:.3f} bits, {seconds:.0f} s", flush=True)
    file = file_of(out, name, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dense": dense, "seconds": seconds}
    with replacing(file) as draft:
        torch.save(kept, draft)


def settle(model: nn.Module, task: Task, seed: int) -> None:
    """Measure BatchNorm's statistics anew after training, so that doing it after pruning gains nothing by itself.

    Those of a short training are those of its last, noisy steps: two points of accuracy on the ResNet.
    """
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        pw.recalibrate(model, task.calibration(4096, seed))


def trained(name: str, seed: int, out: Path) -> dict[str, Any]:
    """What `train` kept."""
    file = file_of(out, name, seed)
    found: dict[str, Any] = read_torch(file, "trained network", "delete it to train it again")
    return found


def restored(name: str, seed: int, kept: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A trained network and its optimizer as they were after training."""
    model, optimizer = fresh(NETWORKS[name], seed)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return model, optimizer


def train_one(name: str, seed: int, options: Namespace) -> None:
    """Train a network, if it is not there."""
    if file_of(options.out, name, seed).exists():
        return
    found = task(NETWORKS[name], seed, options.data, options.text)
    if found is None:
        print(f"{name} is left out: there is no corpus at {options.text}; install python3-doc")
        return
    train(name, seed, found, options.out)
