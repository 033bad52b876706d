"""Why ABS falls behind a random order in experiment 1: the signs of what is kept of the output layer.

Reads the records and trained networks of a results folder of `prunewald reproduce fashion-mnist`. First, by row and
level, the share of positive weights among those kept, layer by layer. Then, at one level, ABS's masks with the output
layer of another row's, and the other way round, retrained and measured beside the records of both.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import parser, record
from prunewald.ensemble import Result
from prunewald.lab.cache import Cache
from prunewald.lab.data import load
from prunewald.lab.networks import Networks
from prunewald.lab.pieces import Pieces
from prunewald.lab.protocol import Protocol
from prunewald.lab.records import Key, RecordFolder
from prunewald.lab.settings import settings
from prunewald.statistics.differences import paired

OUTPUT = "fc3.weight"
Masks = dict[str, Tensor]


def opened(folder: Path, data: str | None, device: str, seeds: list[int]) -> Protocol:
    """The run that made the folder, with all it has."""
    identity = json.loads((folder / "settings.json").read_text())["identity"]
    chosen = settings(identity.pop("experiment"), "paper", **identity)
    if chosen.experiment != "fashion-mnist" or chosen.name != folder.resolve().name:
        raise SystemExit(f"{folder}: give a folder that `prunewald reproduce fashion-mnist` made, under its own name")
    raw = load(chosen.experiment, data)
    networks = Networks.of(chosen, raw, torch.device(device), progress=False)
    cache = Cache(folder / "networks", networks.make)
    records = RecordFolder(folder.parent, chosen, raw.source)
    return Protocol(networks, records, cache, seeds, Pieces(cache), {}, print)


def signs(run: Protocol, dense: Result, rows: list[str], levels: list[float]) -> list[dict[str, Any]]:
    """Shares of positive weights among the kept, means over networks."""
    found = []
    for level in levels:
        for row in rows:
            shares: dict[str, list[float]] = {}
            for r, seed in enumerate(run.seeds):
                masks = run.task(Key(seed, row, level), r, None, dense).chosen(run.networks.chooses_on).masks
                for name, mask in masks.items():
                    kept = dense.params[name][r][mask]
                    shares.setdefault(name, []).append(float((kept > 0).float().mean()))
            means = {name: statistics.fmean(values) for name, values in shares.items()}
            found.append({"level": level, "row": row, "positive": means})
            print(f"{level:6.0%}  {row:14}" + "  ".join(f"{name} {share:4.0%}" for name, share in means.items()))
    return found


def sizes(dense: Result) -> dict[str, float]:
    """The means of the output layer's positive and negative weights."""
    weights = dense.params[OUTPUT]
    means = {"positive": float(weights[weights > 0].mean()), "negative": float(weights[weights < 0].mean())}
    print(f"{OUTPUT}: mean of the positive {means['positive']:+.2f}, of the negative {means['negative']:+.2f}")
    return means


def swapped(run: Protocol, dense: Result, row: str, level: float) -> dict[str, Any]:
    """Accuracies of ABS, the row, and both with the other's output layer; differences to ABS on the same networks."""
    masks = {
        one: [
            run.task(Key(seed, one, level), r, None, dense).chosen(run.networks.chooses_on).masks
            for r, seed in enumerate(run.seeds)
        ]
        for one in ("abs", row)
    }
    records = {(r.seed, r.row): 100 * r.retrained for r in run.results.read() if r.level == level}
    found = {one: [records[seed, one] for seed in run.seeds] for one in ("abs", row)}
    for one, other in (("abs", row), (row, "abs")):
        pairs = zip(masks[one], masks[other], strict=True)
        mixed = [own | {OUTPUT: others[OUTPUT]} for own, others in pairs]
        found[f"{one}, output layer of {other}"] = retrained(run, dense, mixed)
    for name, values in found.items():
        print(f"{name:32} {statistics.fmean(values):6.2f} %   over abs {paired(values, found['abs'])}")
    return {"level": level, "seeds": list(run.seeds), "accuracies": found}


def retrained(run: Protocol, dense: Result, masks: list[Masks]) -> list[float]:
    """Test accuracies in percent."""
    stacked = {name: torch.stack([own[name] for own in masks]) for name in masks[0]}
    done = run.networks.retrained(dense, stacked, run.networks.settings.epochs, collect=False)
    return [100 * accuracy for accuracy in run.networks.test(done.state)]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="a results folder with records and networks/")
    options.add_argument("--data", help="the folder with Fashion-MNIST (default: $PRUNEWALD_DATA)")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--networks", type=int, default=10, help="so many of the first (default %(default)s)")
    options.add_argument("--rows", nargs="+", default=["abs", "random", "pseudo:0", "every:0", "moment:0.1"])
    options.add_argument("--levels", nargs="+", type=float, default=[0.5, 0.8, 0.9])
    options.add_argument("--swap", help="the row whose output layer ABS gets; without it nothing is retrained")
    options.add_argument("--at", type=float, default=0.9, help="the level of it (default %(default)s)")
    args = options.parse_args()
    run = opened(args.folder, args.data, args.device, list(range(args.networks)))
    dense = run.cache.load("dense", run.seeds)
    found = {"means": sizes(dense), "positive": signs(run, dense, args.rows, args.levels)}
    record(args.json, found | ({"swapped": swapped(run, dense, args.swap, args.at)} if args.swap else {}))
