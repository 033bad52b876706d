"""Whole channels removed until so much of the work is gone: ours beside Torch-Pruning's own magnitude pruner.

Both begin with the same trained networks (those of `benchmarks.refitting`) and remove channels until the same share of
the multiply-adds is gone: Torch-Pruning at the nearest ratio, found by bisection, ours by asking for it. Then
BatchNorm's statistics are measured anew on 1,024 training images, and both train on for the same epochs with a new
optimizer of the network's own kind; a further row of ours goes on with the state of the old one. Test accuracy, and
paired differences over the seeds. What is finished is in OUT, and is not done again.
"""

import json
import statistics
from argparse import Namespace
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.bench import parser, record
from benchmarks.refitting.examples import Task, epoch, score, task
from benchmarks.refitting.networks import NETWORKS
from benchmarks.refitting.training import restored, train_one, trained
from prunewald.statistics import holm, paired
from prunewald.util.files import replacing

Optimizer = torch.optim.Optimizer
Way = Callable[[nn.Module, Optimizer, torch.Tensor, float, str], tuple[nn.Module, Optimizer | None]]


def macs(model: nn.Module, x: torch.Tensor) -> float:
    """Multiply-adds of one example, as Torch-Pruning counts them."""
    import torch_pruning

    found, _ = torch_pruning.utils.count_ops_and_params(deepcopy(model).eval(), x[:1])
    return float(found)


def torch_pruning(model: nn.Module, x: torch.Tensor, share: float, head: str, everywhere: bool) -> nn.Module:
    """Its magnitude pruner, at the ratio of channels that leaves nearest to so many multiply-adds."""
    import torch_pruning as tp

    def at(ratio: float) -> nn.Module:
        copy = deepcopy(model).eval()
        pruner = tp.pruner.BasePruner(
            copy, x[:1], importance=tp.importance.GroupMagnitudeImportance(p=2), pruning_ratio=ratio,
            global_pruning=everywhere, ignored_layers=[copy.get_submodule(head)], max_pruning_ratio=0.99,
        )  # fmt: skip
        pruner.step()
        return copy

    wanted, low, high = (1 - share) * macs(model, x), 0.0, 1.0
    best, gap = model, float("inf")
    for _ in range(12):
        middle = (low + high) / 2
        found = at(middle)
        left = macs(found, x)
        if abs(left - wanted) < gap:
            best, gap = found, abs(left - wanted)
        low, high = (middle, high) if left > wanted else (low, middle)
    return best


def peers(everywhere: bool) -> Way:
    """Torch-Pruning, each layer alike or all channels in one order."""

    def way(
        model: nn.Module, optimizer: Optimizer, x: torch.Tensor, share: float, head: str
    ) -> tuple[nn.Module, Optimizer | None]:
        return torch_pruning(model, x, share, head, everywhere), None

    return way


def ours(going_on: bool, **chosen: Any) -> Way:
    """By the library; going on with the optimizer, or with a new one."""

    def way(
        model: nn.Module, optimizer: Optimizer, x: torch.Tensor, share: float, head: str
    ) -> tuple[nn.Module, Optimizer | None]:
        pruner = pw.Pruner(model, optimizer, ignore=head, **{"pattern": pw.Filter(), **chosen})
        pruner.prune(share, example_inputs=x[:1], of="macs")
        small, carried = pw.shrink(pruner, x[:2], optimizer)
        return small, carried if going_on else None

    return way


WAYS: dict[str, Way] = {
    "Torch-Pruning": peers(everywhere=False),
    "Torch-Pruning, global": peers(everywhere=True),
    "ours": ours(going_on=False),
    "ours, optimizer carried over": ours(going_on=True),
    "ours, global": ours(going_on=False, scope="global"),
    "ours, global, optimizer carried over": ours(going_on=True, scope="global"),
    "ours, L1": ours(going_on=False, criterion="magnitude", pattern=pw.Filter(score="l1")),
}


def one(name: str, seed: int, share: float, way: Way, kept: dict[str, Any], found: Task, epochs: int) -> dict[str, Any]:
    """One network, made smaller in one way, before and after training on."""
    model, optimizer = restored(name, seed, kept)
    network, x = NETWORKS[name], found.train.x[:2]
    whole = macs(model, x)
    small, carried = way(model.eval(), optimizer, x, share, network.head)
    left = macs(small, x) / whole
    if any(isinstance(module, nn.BatchNorm2d) for module in small.modules()):
        pw.recalibrate(small, found.calibration(1024, seed))
    at_once = score(small, found.test)["accuracy"]
    going = carried or network.optimizer(small.parameters(), lr=network.lr)
    generator = torch.Generator().manual_seed(40_000 + seed)
    for _ in range(epochs):
        epoch(small, going, found.train, network.batch, generator)
    after = score(small, found.test)["accuracy"]
    parameters = sum(p.numel() for p in small.parameters())
    return {"macs": left, "parameters": parameters, "at once": at_once, "after": after}


def measure(options: Namespace) -> dict[str, Any]:
    """All that is not there yet, in an order in which a run that is stopped has whole seeds."""
    file = options.out / "channels.json"
    lines: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for seed in range(options.seeds):
        for name in options.networks:
            train_one(name, seed, options)
            kept, found = trained(name, seed, options.out), task(NETWORKS[name], seed, options.data, Path())
            assert found is not None
            lines[f"{name} {seed} dense"] = kept["dense"]["accuracy"]
            for share in options.shares:
                for way, job in WAYS.items():
                    key = f"{name} {seed} {share:g} {way}"
                    if key in lines:
                        continue
                    lines[key] = one(name, seed, share, job, kept, found, options.epochs)
                    print(key, {n: round(v, 3) for n, v in lines[key].items()}, flush=True)
                    with replacing(file) as draft:
                        draft.write(json.dumps(lines, indent=0).encode())
    return lines


def table(lines: dict[str, Any], options: Namespace) -> str:
    """Means over the seeds, and differences to the better of Torch-Pruning's two, adjusted over the table."""
    rows, tests = [], []
    for name in options.networks:
        for share in options.shares:
            runs = {way: [lines[f"{name} {s} {share:g} {way}"] for s in range(options.seeds)] for way in WAYS}
            means = {way: statistics.fmean(r["after"] for r in own) for way, own in runs.items()}
            peer = max(list(WAYS)[:2], key=means.__getitem__)
            for way, own in runs.items():
                gap = None
                if way not in list(WAYS)[:2] and len(own) > 1:
                    gap = paired([r["after"] for r in own], [r["after"] for r in runs[peer]])
                    tests.append(gap.p)
                rows.append((name, share, way, own, means[way], gap, peer))
    adjusted = iter(holm(tests))
    text = [
        f"{'network':10}{'gone':>5}  {'way':38}{'macs':>7}{'at once':>9}{'after':>8}  over the better Torch-Pruning"
    ]
    for name, share, way, own, mean, gap, peer in rows:
        left, start = (statistics.fmean(r[key] for r in own) for key in ("macs", "at once"))
        said = "" if gap is None else f"{gap}, p Holm {next(adjusted):.2g} ({peer})"
        text.append(f"{name:10}{share:5.0%}  {way:38}{left:7.1%}{start:9.2f}{mean:8.2f}  {said}".rstrip())
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--data", type=Path, help="a folder of data sets, as the lab takes it")
    made.add_argument("--out", type=Path, required=True, help="where networks and what is finished are kept")
    made.add_argument("--networks", nargs="+", choices=[n for n, net in NETWORKS.items() if not net.text],
                      default=["resnet", "alexnet"])  # fmt: skip
    made.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.5, 0.7], help="of multiply-adds, to be gone")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--epochs", type=int, default=2, help="of training after removal")
    given = made.parse_args()
    given.text = Path()
    torch.set_num_threads(1)
    numbers = measure(given)
    print(table(numbers, given))
    record(given.json, numbers)
