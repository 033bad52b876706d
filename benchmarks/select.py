"""prune(0.9) of 100 M weights in ten layers, by default, per layer and globally, against torch.nn.utils.prune.

Seconds, and peak memory over the model. On a busy machine `--clock process_time`, with OMP_NUM_THREADS=1, tells the
seconds of the processor, which waiting does not make more of. `--side 8192 --layers 2` has layers of 67 M weights.
"""

from benchmarks.bench import parser, peak_over_start, record

SETUP = """
import torch
from torch import nn
from torch.nn.utils import prune
import prunewald as pw
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear({side}, {side}, bias=False) for _ in range({layers})))
optimizer = torch.optim.RMSprop(model.parameters())
layers = [(layer, "weight") for layer in model]
pw.Pruner(nn.Sequential(nn.Linear(300, 300)), criterion="magnitude").prune(0.5)  # everything is loaded and warm
"""
TRAINED = """
for p in model.parameters():
    optimizer.state[p] = {{"step": torch.tensor(100.0), "square_avg": torch.rand_like(p)}}
"""
WAYS = {
    "default": {
        "per layer, as a base": "pw.Pruner(model, optimizer, scope='layer').prune(0.9)",
        "prunewald, magnitude": "pw.Pruner(model, criterion='magnitude').prune(0.9)",
        "prunewald, M&U second moment": "pw.Pruner(model, optimizer).prune(0.9)",
    },
    "layer": {
        "torch l1_unstructured": "for layer, name in layers: prune.l1_unstructured(layer, name, 0.9)",
        "prunewald, magnitude": "pw.Pruner(model, criterion='magnitude', scope='layer').prune(0.9)",
        "prunewald, M&U second moment": "pw.Pruner(model, optimizer, scope='layer').prune(0.9)",
    },
    "global": {
        "torch global_unstructured": "prune.global_unstructured(layers, prune.L1Unstructured, amount=0.9)",
        "prunewald, magnitude": "pw.Pruner(model, criterion='magnitude', scope='global').prune(0.9)",
        "prunewald, M&U second moment": "pw.Pruner(model, optimizer, scope='global').prune(0.9)",
    },
}


def measure(side: int, layers: int, rounds: int, clock: str) -> dict[str, dict[str, dict[str, float]]]:
    """Every way in a process of its own, taking turns; medians."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {s: {w: [] for w in ways} for s, ways in WAYS.items()}
    for _ in range(rounds):
        for scope, ways in WAYS.items():
            for way, job in ways.items():
                setup = (SETUP + (TRAINED if "optimizer" in job else "")).format(side=side, layers=layers)
                found[scope][way].append(peak_over_start(f"{setup}#---\n{job}\n", clock))
    return {
        scope: {
            way: {
                "seconds": sorted(s for s, _ in runs)[rounds // 2],
                "MB": sorted(m for _, m in runs)[rounds // 2] / 1e6,
            }
            for way, runs in ways.items()
        }
        for scope, ways in found.items()
    }


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--side", type=int, default=3163, help="layers of side x side weights")
    args.add_argument("--layers", type=int, default=10)
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--clock", choices=("perf_counter", "process_time"), default="perf_counter")
    options = args.parse_args()
    numbers = measure(options.side, options.layers, options.rounds, options.clock)
    total = options.layers * options.side**2
    print(f"{total:,} weights in {options.layers} layers, prune(0.9); peak memory is over the model")
    for scope, ways in numbers.items():
        base = next(iter(ways.values()))
        for way, n in ways.items():
            faster, smaller = base["seconds"] / n["seconds"], base["MB"] / n["MB"]
            print(f"  {scope:8}{way:30}{n['seconds']:8.2f} s{faster:7.1f}x{n['MB']:9.0f} MB{smaller:7.1f}x")
    record(options.json, numbers)
