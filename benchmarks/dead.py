"""Does decay or a penalty hide dead weights? Accuracy at 90 % with and without, on images in a wide empty frame.

69 % of the inputs are constant: what they feed is dead, whatever else moves it. Every optimizer is run without a decay
or a penalty and with three strengths of each, pruned as by default (SGD: by the pseudo bootstrap), then trained on for
two epochs while the step size falls to 0. The output layer stays whole: a lost class would be most of the noise.
"late" is a Pruner attached after training, before and after observe().
"""

import statistics
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunewald as pw
from benchmarks.bench import parser, record
from prunewald.lab.data import embedded

FRAME, SIDE, HIDDEN, BATCH, EPOCHS, MORE = 25, 14, 64, 100, 4, 2
OPTIMIZERS: dict[str, tuple[Any, dict[str, float]]] = {
    "Adam": (torch.optim.Adam, {"lr": 1e-3}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.0}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3}),
    "SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
}
KINDS, STRENGTHS = ("weight_decay", "l1", "l2"), (1e-6, 1e-5, 1e-4)
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def data() -> Data:
    """Images of 14 x 14 in the middle of a frame of 25 x 25."""
    raw = embedded()
    left = (FRAME - SIDE) // 2
    right = FRAME - SIDE - left
    x, z = (
        F.pad(F.avg_pool2d(part.x.float() / 255, 2), (left, right, left, right)).flatten(1)
        for part in (raw.train, raw.test)
    )
    return x, raw.train.y, z, raw.test.y


def train(model: nn.Module, optimizer: Any, found: Data, epochs: int, kind: str, strength: float, ends: bool) -> None:
    """Epochs of shuffled batches; a penalty of ours is a term of the loss. What `ends` comes to rest: lr falls to 0."""
    x, y = found[:2]
    first, steps = optimizer.param_groups[0]["lr"], iter(range(epochs * len(x) // BATCH))
    penalty = {"l1": pw.companions.l1, "l2": pw.companions.l2}.get(kind)
    weights = [p for p in model.parameters() if p.dim() > 1]
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[rows]), y[rows])
            if penalty is not None:
                loss = loss + strength * penalty(weights)
            loss.backward()
            if ends:
                optimizer.param_groups[0]["lr"] = first * (1 - next(steps) * BATCH / (epochs * len(x)))
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def run(found: Data, name: str, kind: str, strength: float, seed: int) -> dict[str, float]:
    """One training, pruned to 90 %, trained on and measured; shares of dead weights are of the first layer."""
    x, _, test_x, test_y = found
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FRAME**2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    make, options = OPTIMIZERS[name]
    optimizer = make(model.parameters(), **{**options, **({kind: strength} if kind == "weight_decay" else {})})
    steps = EPOCHS * len(x) // BATCH
    by: dict[str, Any] = {}
    if name == "SGD":
        by = {"uncertainty": pw.PseudoBootstrap(200, total_steps=steps)}
    pruner = pw.Pruner(model, optimizer, targets="0", **by)
    train(model, optimizer, found, EPOCHS, kind, strength, ends=False)
    result = {"dense": accuracy(model, test_x, test_y)}
    constant = (x == 0).all(0).expand(HIDDEN, -1)
    result["missed"] = float((constant & ~pruner.dead()["0.weight"]).sum() / constant.sum())
    masks, _ = pruner.choose(0.9)
    if not by:
        result |= late(model, optimizer, found, masks)
    pruner.prune(0.9)
    result["kept dead"] = float((masks["0.weight"] & constant).sum() / masks["0.weight"].sum())
    result["pruned"] = accuracy(model, test_x, test_y)
    train(model, optimizer, found, MORE, kind, strength, ends=True)
    return {**result, "retrained": accuracy(model, test_x, test_y)}


def late(model: nn.Module, optimizer: Any, found: Data, masks: dict[str, Tensor]) -> dict[str, float]:
    """How much of the same a Pruner chooses that was attached after training, before and after it has seen data."""
    x, y = found[:2]
    pruner = pw.Pruner(model, optimizer, targets="0")
    blind, _ = pruner.choose(0.9)
    pruner.observe(zip(x.split(500), y.split(500), strict=True), F.cross_entropy)
    seeing, _ = pruner.choose(0.9)
    pruner.detach()
    return {"late": _alike(blind, masks), "late, observed": _alike(seeing, masks)}


def _alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The share of what the one keeps that the other keeps too."""
    return sum(int((one[n] & other[n]).sum()) for n in one) / sum(int(mask.sum()) for mask in one.values())


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--seeds", type=int, default=10)
    options = args.parse_args()
    torch.set_num_threads(1)
    found, numbers = data(), {}
    print(f"{float((found[0] == 0).all(0).float().mean()):.1%} of the inputs are constant; {options.seeds} seeds")
    for name in OPTIMIZERS:
        base: list[float] = []
        kinds = KINDS[:1] if name == "AdamW" else KINDS  # with a penalty in the loss it is Adam
        for kind, strength in [("nothing", 0.0), *product(kinds, STRENGTHS)]:
            runs = [run(found, name, kind, strength, seed) for seed in range(options.seeds)]
            means = {key: statistics.mean(one[key] for one in runs) for key in runs[0]}
            base = base or [one["retrained"] for one in runs]
            gains = [100 * (one["retrained"] - other) for one, other in zip(runs, base, strict=True)]
            means["difference"] = statistics.mean(gains)
            if len(gains) > 1:
                means["standard error"] = statistics.stdev(gains) / len(gains) ** 0.5
            label = f"{name}, {kind}" + (f" {strength:g}" if strength else "")
            numbers[label] = means
            print(f"{label:28}" + "  ".join(f"{key} {value:.4f}" for key, value in means.items()), flush=True)
    record(options.json, numbers)
