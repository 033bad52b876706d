"""MNIST networks from dense to file: iterative M&U pruning, shared values, entropy coding; bytes and test errors.

The dense network is trained with dropout, and teaches the pruned ones, which have less of it; LeNet-300-100 has three
more teachers of its kind. Everything is counted: the whole file against the float32 weights of the dense network. The
levels are chosen on validation images, so that "no loss" is asked of these and of the test images; errors are of the
model as it was loaded from its file.
"""

import copy
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunewald as pw
from benchmarks.bench import parser, record
from prunewald.companions import distillation_loss
from prunewald.lab.architectures import MLP
from prunewald.lab.data import load, split
from prunewald.quantisation import SharedValues
from prunewald.statistics.differences import paired
from prunewald.util.files import replacing

MEAN, STD, BATCH = 0.1307, 0.3081, 128
DROPOUT, LESS = 0.1, 0.3  # in training, and how much of it is left in retraining


def lenet_300_100() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(DROPOUT), nn.Linear(784, 300), nn.ReLU(), nn.Dropout(2 * DROPOUT),
        nn.Linear(300, 100), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(100, 10),
    )  # fmt: skip


def lenet_5() -> nn.Module:
    """Caffe's, of 431,080 parameters, as Deep Compression counts it."""
    layers = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(2 * DROPOUT), nn.Linear(800, 500), nn.ReLU(), nn.Dropout(2 * DROPOUT), nn.Linear(500, 10),
    )  # fmt: skip
    for layer in layers:
        if isinstance(layer, nn.Conv2d):  # 1.7 times faster on a CPU
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return layers


@dataclass(frozen=True)
class Recipe:
    """How one network is trained, pruned and quantised."""

    make: Callable[[], nn.Module]
    published: str
    epochs: int
    retrain_epochs: int
    tune_epochs: int
    levels: tuple[float, ...]
    size: int  # shared values a layer
    lr: float = 2e-3
    teachers: int = 1  # dense networks whose mean output the pruned one learns from; itself is the first

    @property
    def text(self) -> str:
        """What tells it from others."""
        return repr([getattr(self, each.name) for each in fields(self) if each.name != "make"])


RECIPES = {
    "lenet-300-100": Recipe(
        lenet_300_100, "Deep Compression 40x at 1.58 % (dense 1.64)", 20, 10, 4,
        (0.7, 0.85, 0.91, 0.94, 0.96, 0.972, 0.98), 16, teachers=4,
    ),
    "lenet-5": Recipe(
        lenet_5, "Deep Compression 39x at 0.74 % (dense 0.80)", 8, 3, 2, (0.93, 0.965, 0.982, 0.99), 16,
    ),
    "mlp": Recipe(MLP, "", 10, 4, 2, (0.9, 0.96, 0.98, 0.988), 16),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One network at one level; errors in percent."""

    seed: int
    level: float
    bytes: int
    ratio: float
    validation: float
    test: float
    pruned_test: float  # before the values were shared


@dataclass(frozen=True)
class Data:
    """Images and labels."""

    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def mnist(seed: int, folder: str | None, device: str) -> Data:
    raw = load("mnist", folder)
    rows = split(raw, seed)

    def part(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.to(device).float() / 255 - MEAN) / STD, y.to(device)

    x, y = raw.train
    return Data(part(x[rows.train], y[rows.train]), part(x[rows.val], y[rows.val]), part(*raw.test))


def train(
    model: nn.Module,
    optimizer: Any,
    data: Data,
    epochs: int,
    lr: float,
    generator: torch.Generator,
    teacher: Tensor | None = None,
) -> None:
    """Adam with a learning rate that falls to nothing; `teacher`: the dense network's outputs."""
    x, y = data.train
    model.train()
    steps, step = epochs * (len(x) // BATCH), 0
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH)[: len(x) // BATCH]:
            optimizer.param_groups[0]["lr"] = lr * (1 - step / steps) + 1e-5
            step += 1
            at = rows.to(x.device)
            optimizer.zero_grad()
            out = model(x[at])
            loss = F.cross_entropy(out, y[at]) if teacher is None else distilled(out, teacher[at], y[at])
            loss.backward()
            optimizer.step()


def distilled(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    return distillation_loss(student, teacher, targets, temperature=4.0, weight=0.7)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(part) for part in x.split(1000)])


@torch.no_grad()
def error(model: nn.Module, part: tuple[Tensor, Tensor]) -> float:
    model.eval()
    wrong = sum(int((model(x).argmax(1) != y).sum()) for x, y in zip(*(t.split(1000) for t in part), strict=True))
    return 100 * wrong / len(part[1])


def shared(recipe: Recipe, pruner: pw.Pruner, data: Data, generator: torch.Generator, teacher: Tensor) -> nn.Module:
    """A copy whose survivors share a few values, which were tuned."""
    model = copy.deepcopy(pruner.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
    other = pw.Pruner(model, optimizer, criterion="magnitude")
    other.set_masks(pruner.masks)
    values = SharedValues(other, size=recipe.size, reduce="mean")
    train(model, optimizer, data, recipe.tune_epochs, recipe.lr / 4, generator, teacher)
    values.detach()
    other.detach()
    return model


def dense_network(
    recipe: Recipe, data: Data, device: str, generator: torch.Generator
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and its optimizer after the dense training."""
    model = recipe.make().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
    train(model, optimizer, data, recipe.epochs, recipe.lr, generator)
    return model, optimizer


def trained(name: str, seed: int, args: Any) -> Path:
    """One network through all levels: the dense one's errors, and the state at each level; a finished one is kept."""
    file, recipe = Path(args.out) / name / f"{seed:03}.pt", RECIPES[name]
    if file.exists():
        if torch.load(file, weights_only=True)["recipe"] != recipe.text:
            raise SystemExit(f"{file} is of another recipe: give another --out")
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    data = mnist(seed, args.data, args.device)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, optimizer = dense_network(recipe, data, args.device, generator)
    dense = {"validation": error(model, data.val), "test": error(model, data.test)}
    print(f"{name} {seed}: dense {dense}", flush=True)
    teacher = outputs(model, data.train[0])
    for _ in range(1, recipe.teachers):
        teacher += outputs(dense_network(recipe, data, args.device, generator)[0], data.train[0])
    teacher /= recipe.teachers
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p *= LESS
    pruner = pw.Pruner(model, optimizer, criterion=pw.MagnitudeUncertainty(lam=1.0), scope="lamp")
    states, pruned = [], []
    for level in recipe.levels:
        pruner.prune(level)
        train(model, optimizer, data, recipe.retrain_epochs, recipe.lr, generator, teacher)
        small = shared(recipe, pruner, data, generator, teacher)
        pruned.append(error(model, data.test))
        states.append({n: t.cpu() for n, t in small.state_dict().items()})
        print(f"{name} {seed}: {level:.1%} pruned {pruned[-1]:.2f}, shared {error(small, data.test):.2f}", flush=True)
    with replacing(file) as out:
        torch.save({"recipe": recipe.text, "dense": dense, "pruned": pruned, "states": states}, out)
    return file


def packed(name: str, seed: int, file: Path, args: Any) -> dict[str, Any]:
    """Write each level's file, read it back, and measure what was read."""
    recipe, data, saved = RECIPES[name], mnist(seed, args.data, args.device), torch.load(file, weights_only=True)
    size = 4 * sum(p.numel() for p in recipe.make().parameters())
    cells = []
    for level, state, pruned in zip(recipe.levels, saved["states"], saved["pruned"], strict=True):
        model = recipe.make()
        model.load_state_dict(state)
        path = file.with_name(f"{seed:03}-{level:g}.pw")
        pw.save(model, path, values={"*.bias": "float16"})
        small = pw.load(path, into=recipe.make()).to(args.device)
        errors = {"validation": error(small, data.val), "test": error(small, data.test)}
        stored = path.stat().st_size
        cells.append(Cell(seed, level, stored, size / stored, **errors, pruned_test=pruned))
    return {"dense": saved["dense"], "bytes": size, "cells": [asdict(cell) for cell in cells]}


def chosen(found: dict[str, Any], budget: float) -> dict[str, Any] | None:
    """The smallest file whose validation error is within the budget of the dense network's."""
    fits = [c for c in found["cells"] if c["validation"] <= found["dense"]["validation"] + budget]
    return min(fits, key=lambda cell: cell["bytes"]) if fits else None


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, by budget and by level."""
    dense = _mean(run["dense"]["test"] for run in runs)
    print(f"\n{name}: {len(runs)} networks, {runs[0]['bytes']:,} bytes dense, test error {dense:.2f} %")
    print(f"  published: {RECIPES[name].published}")
    by_budget = {}
    for budget in (0.0, 0.3):
        picked = [cell for run in runs if (cell := chosen(run, budget)) is not None]
        if picked:
            means = {key: _mean(cell[key] for cell in picked) for key in ("bytes", "ratio", "test", "level")}
            by_budget[f"{budget:g}"] = means | {"networks": len(picked)}
            print(
                f"  validation loss at most {budget:g} points ({len(picked)} of {len(runs)} networks): "
                f"{means['bytes']:,.0f} bytes, {means['ratio']:.0f}x, test error {means['test']:.2f} %"
            )
    by_level = {}
    for place, level in enumerate(RECIPES[name].levels):
        cells = [run["cells"][place] for run in runs]
        means = {
            key: _mean(cell[key] for cell in cells) for key in ("bytes", "ratio", "test", "validation", "pruned_test")
        }
        loss, held_out = (
            paired([cell[part] for cell in cells], [run["dense"][part] for run in runs])
            for part in ("test", "validation")
        )
        by_level[f"{level:g}"] = means | {"loss": asdict(loss), "validation loss": asdict(held_out)}
        size = f"{means['bytes']:10,.0f} bytes {means['ratio']:7.1f}x"
        print(f"  {level:7.1%} {size}, test error {means['test']:.2f} %, over dense {loss}; on validation {held_out}")
    return {"dense test error": dense, "by budget": by_budget, "by level": by_level, "runs": runs}


def _mean(values: Any) -> float:
    return statistics.fmean(values)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--networks", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--data", help="the folder with MNIST (default: $PRUNEWALD_DATA)")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--out", default="compression", help="finished networks are kept here (default %(default)s)")
    options.add_argument("--first-seed", type=int, default=0)
    options.add_argument("--train-only", action="store_true", help="leave the files for another run")
    args = options.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    files = {name: {seed: trained(name, seed, args) for seed in seeds} for name in args.networks}
    if not args.train_only:
        found = {name: [packed(name, seed, f, args) for seed, f in of.items()] for name, of in files.items()}
        record(args.json, {name: summary(name, runs) for name, runs in found.items()})
