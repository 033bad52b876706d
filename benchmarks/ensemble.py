"""Many models at once against one plain PyTorch loop on the same device, all in one run."""

import time
from collections.abc import Callable
from itertools import cycle, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bench import interleaved, parser, record, wait
from prunewald.ensemble import RMSprop, train_many
from prunewald.ensemble.job import Job
from prunewald.ensemble.vmap_trainer import VmapTrainer
from prunewald.lab.architectures import PaperCNN

BATCH, ROWS, LR = 128, 5400, 1e-3


def mlp() -> nn.Module:
    layers = [m for a, b in pairwise((784, 512, 1024, 512, 10)) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def data(device: torch.device) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.rand(ROWS, 1, 28, 28, device=device), torch.randint(0, 10, (ROWS,), device=device)


def plain(make: Callable[[], nn.Module], device: torch.device) -> Callable[[], None]:
    """A step of one model as one would write it."""
    x, y = data(device)
    model = make().to(device).train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=LR)
    batches = cycle(torch.randperm(ROWS, device=device).split(BATCH)[:-1])

    def step() -> None:
        rows = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()

    return step


def together(make: Callable[[], nn.Module], device: torch.device, replicas: int) -> tuple[Callable[[], None], float]:
    """A step of many, and the peak memory in MiB that they take."""
    wait()
    held = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    x, y = data(device)
    seeds = tuple(range(replicas))
    settings: dict[str, Any] = {"loss": F.cross_entropy, "epochs": 1, "batch_size": BATCH, "optimizer": RMSprop(LR)}
    trainer = VmapTrainer(Job(make=make, x=x, y=y, seeds=seeds, device=device, **settings))
    whole = torch.stack([torch.randperm(ROWS, device=device) for _ in range(replicas)])
    batches = cycle(whole.split(BATCH, dim=1)[:-1])

    def step() -> None:
        with trainer.context():
            trainer.step(next(batches))

    for _ in range(6 if device.type == "cuda" else 1):
        step()
    peak = torch.cuda.max_memory_allocated() - held if device.type == "cuda" else 0
    print(f"  {replicas} replicas: {trainer.how}", flush=True)
    return step, peak / 2**20


def compare(name: str, make: Callable[[], nn.Module], counts: list[int], options: Any) -> dict[str, Any]:
    device = torch.device(options.device)
    print(f"{name}, batch {BATCH}, RMSprop, {options.device}")
    ways: dict[str, Callable[[], object]] = {"one plain loop": plain(make, device)}
    peaks = {}
    for count in counts:
        ways[f"{count} together"], peaks[f"{count} together"] = together(make, device, count)
    seconds = interleaved(ways, options.blocks, inner=10 if device.type == "cuda" else 1)
    base = seconds["one plain loop"]
    for way, value in seconds.items():
        print(
            f"  {way:18}{1e3 * value:9.3f} ms a step{value / base:9.3f} of one{peaks.get(way, 0):10.0f} MiB", flush=True
        )
    return {way: {"ms": 1e3 * s, "ratio": s / base, "peak MiB": peaks.get(way)} for way, s in seconds.items()}


def whole(replicas: int, epochs: int, device: torch.device) -> dict[str, float]:
    """Everything: initialisation, bootstrap, trial, training and result, against the plain loop's steps."""
    step, (x, y) = plain(PaperCNN, device), data(device)
    steps = epochs * -(-ROWS // BATCH)
    step()
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    one = time.perf_counter() - began
    options: dict[str, Any] = {"optimizer": RMSprop(LR), "resample": "bootstrap", "progress": False}
    began = time.perf_counter()
    train_many(PaperCNN, x, y, seeds=range(replicas), epochs=1, **options)
    first = time.perf_counter() - began
    began = time.perf_counter()
    done = train_many(PaperCNN, x, y, seeds=range(replicas), epochs=epochs, **options)
    many = time.perf_counter() - began
    print(
        f"train_many, {replicas} replicas, {epochs} epochs: {many:.2f} s, one plain loop {one:.2f} s ({done.how}); "
        f"before it, a first epoch with what there is to compile: {first:.2f} s"
    )
    times = {"first epoch seconds": first, "seconds": many, "plain seconds": one, "ratio": many / one}
    return {"replicas": replicas, "epochs": epochs, **times}


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args.add_argument("--blocks", type=int, default=20)
    args.add_argument("--cnn", type=int, nargs="*", default=[1, 10, 100, 1000], help="replicas of the paper's network")
    args.add_argument("--mlp", type=int, nargs="*", default=[1, 20], help="replicas of the MLP")
    args.add_argument("--epochs", type=int, default=50)
    chosen = args.parse_args()
    numbers = {
        "PaperCNN, 9,660 parameters": compare("PaperCNN", PaperCNN, chosen.cnn, chosen),
        "MLP 784-512-1024-512-10": compare("MLP", mlp, chosen.mlp, chosen),
        "a whole training of PaperCNN": whole(
            max(min(chosen.cnn[-1], 100), 1), chosen.epochs, torch.device(chosen.device)
        ),
    }
    record(chosen.json, numbers)
