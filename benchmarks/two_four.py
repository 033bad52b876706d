"""2:4: what it costs in accuracy, on any machine, and what it gains in time, on a GPU that has sparse tensor cores.

    python -m benchmarks.two_four accuracy --data DIR    # a vision transformer on CIFAR-10: dense, any half, 2:4
    python -m benchmarks.two_four speed                  # bf16 Linear layers through torch.sparse, against dense

Accuracy: trained with AdamW on 45,000 images without augmentation, half of each layer's weights pruned, trained on for
fewer epochs; the dense control trains on for as long. All weights are pruned but those of the first layer, whose three
colours do not come in fours, and of the last, in both ways alike. The dense networks are kept beside the numbers.
"""

import statistics
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.bench import interleaved, parser, record
from benchmarks.refitting.examples import Task, epoch, score, task
from benchmarks.refitting.networks import Network
from prunewald.lab.newer import Transformer
from prunewald.statistics import paired
from prunewald.util.files import read_torch, replacing

NETWORK = Network(
    "vision transformer, CIFAR-10", "cifar10", partial(Transformer, 3, 32, 10, 0.1), 45_000, 30,
    partial(torch.optim.AdamW, weight_decay=0.01),
)  # fmt: skip
LEFT = ("patches", "fc")
WAYS: dict[str, dict[str, Any] | None] = {
    "dense": None,
    "any half": {"scope": "layer"},
    "2:4": {"pattern": pw.KeepNOfM(2, 4)},
}
SIDES = (1024, 2048, 4096, 8192)


def trained(seed: int, found: Task, out: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network after its training, which is done once."""
    torch.manual_seed(seed)
    model = NETWORK.make()
    optimizer = NETWORK.optimizer(model.parameters(), lr=NETWORK.lr)
    file = out / f"two-four-{seed}.pt"
    if not file.exists():
        generator = torch.Generator().manual_seed(seed)
        for _ in range(NETWORK.epochs):
            epoch(model, optimizer, found.train, NETWORK.batch, generator)
        out.mkdir(parents=True, exist_ok=True)
        with replacing(file) as draft:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, draft)
    kept = read_torch(file, "trained network", "delete it to train it again")
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return model, optimizer


def accuracies(seed: int, found: Task, out: Path, epochs: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Accuracy before, right after pruning and after training on, of each way."""
    for way, choices in WAYS.items():
        model, optimizer = trained(seed, found, out)
        start = score(model, found.test)["accuracy"]
        if choices is not None:
            pw.Pruner(model, optimizer, ignore=LEFT, **choices).prune(None if way == "2:4" else 0.5)
        pruned, generator = score(model, found.test)["accuracy"], torch.Generator().manual_seed(30_000 + seed)
        for _ in range(epochs):
            epoch(model, optimizer, found.train, NETWORK.batch, generator)
        left = sum(int(torch.count_nonzero(p)) for p in model.parameters())
        numbers = {"before": start, "at once": pruned, "after": score(model, found.test)["accuracy"], "left": left}
        print(f"{seed} {way:9} {start:6.2f} {pruned:6.2f} {numbers['after']:6.2f} %, {left:,} not zero", flush=True)
        yield way, numbers


def accuracy(options: Any) -> dict[str, Any]:
    """All seeds, and paired differences to the dense control."""
    torch.set_num_threads(options.threads)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        examples = task(NETWORK, seed, options.data, Path())
        assert examples is not None
        for way, numbers in accuracies(seed, examples, options.out, options.epochs):
            found[way].append(numbers)
    after = {way: [one["after"] for one in runs] for way, runs in found.items()}
    for way, values in after.items():
        print(f"{way:9} {statistics.mean(values):6.2f} %", end="")
        if way != "dense" and len(values) > 1:
            gap = paired(values, after["dense"])
            print(f", against dense {gap}", end="")
        print()
    return {"epochs": NETWORK.epochs, "epochs after": options.epochs, "runs": found}


@torch.inference_mode()
def speed(options: Any) -> dict[str, Any]:
    """Seconds of square Linear layers in bf16, dense and 2:4, for batches of several sizes."""
    if not torch.cuda.is_available():
        raise SystemExit("speed is measured on a CUDA device with sparse tensor cores, and there is none here")
    numbers: dict[str, Any] = {}
    for side in SIDES:
        layer = nn.Linear(side, side, device="cuda", dtype=torch.bfloat16)
        pw.Pruner(layer, criterion="magnitude", pattern=pw.KeepNOfM(2, 4), targets="weight").prune()
        sparse = deepcopy(layer)
        sparse.weight = nn.Parameter(torch.sparse.to_sparse_semi_structured(layer.weight), requires_grad=False)
        for rows in options.rows:
            x = torch.randn(rows, side, device="cuda", dtype=torch.bfloat16)
            wanted, got = layer(x), sparse(x)
            error = float((got - wanted).abs().max() / wanted.abs().max())
            times = interleaved({"dense": partial(layer, x), "2:4": partial(sparse, x)}, blocks=20, inner=50)
            numbers[f"{side}, {rows} rows"] = {**times, "faster": times["dense"] / times["2:4"], "error": error}
            print(f"{side:5} x {side:<5} {rows:6} rows: {times['dense'] / times['2:4']:.2f} times as fast", flush=True)
    return numbers


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("what", choices=("accuracy", "speed"))
    made.add_argument("--data", type=Path, help="a folder of data sets, as the lab takes it")
    made.add_argument("--out", type=Path, default=Path("two-four"), help="where trained networks are kept")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--epochs", type=int, default=5, help="of training after pruning")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--rows", type=int, nargs="+", default=[64, 1024, 8192])
    given = made.parse_args()
    record(given.json, accuracy(given) if given.what == "accuracy" else speed(given))
