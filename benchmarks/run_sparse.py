"""run_sparse against the dense model: how many times as fast, by backend, batch and threads, side by side in one run.

    python -m benchmarks.run_sparse --json results/benchmarks/run_sparse.json

The MLP 784-512-1024-512-10 with ReLU, its weights zero at random places. Each column is the model that run_sparse()
returns when only that backend may be tried ("all": any of them); 1.00 is where it stayed dense. A turn of each way is
half a millisecond, so that on a busy machine most turns are undisturbed, and the median is one of these.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.bench import interleaved, parser, record
from prunewald.sparse import SpeedReport
from prunewald.sparse.backends import BACKENDS
from prunewald.util.tables import text_table

SIZES = (784, 512, 1024, 512, 10)
WAYS: dict[str, tuple[str, ...]] = {**{name: (name,) for name in BACKENDS}, "all": BACKENDS}


def network(sparsity: float) -> nn.Sequential:
    """The MLP, with this share of each layer's weights at zero."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight *= torch.rand(outputs, inputs) >= sparsity
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def one(sparsity: float, batch: int) -> dict[str, Any]:
    """Seconds of the dense model and of each way, and what "all" has chosen."""
    model, x = network(sparsity).eval().requires_grad_(False), torch.randn(batch, SIZES[0])
    models = {"dense": model} | {name: pw.run_sparse(model, x, backends=backends) for name, backends in WAYS.items()}
    with torch.inference_mode():
        wanted = model(x)
        worst = max(float((fast(x) - wanted).abs().max() / wanted.abs().max()) for fast in models.values())
        times = interleaved({name: _call(fast, x) for name, fast in models.items()}, 301, 5 if batch == 1 else 1)
    report = models["all"].report
    assert isinstance(report, SpeedReport)
    stayed = [name for name in WAYS if not models[name].report.replaced]  # type: ignore[union-attr]
    ratios = {name: 1.0 if name in stayed else times["dense"] / times[name] for name in WAYS}
    chosen = {row.name: row.way or "dense" for row in report.layers}
    return {"seconds": times, "faster": ratios, "stayed dense": stayed, "chosen": chosen, "difference": worst}


def _call(model: nn.Module, x: torch.Tensor) -> Any:
    return lambda: model(x)


def main(options: Any) -> dict[str, Any]:
    """All levels, batches and threads, as a table and as data."""
    numbers: dict[str, Any] = {}
    for threads in options.threads:
        torch.set_num_threads(threads)
        for batch in options.batches:
            rows = []
            for sparsity in options.sparsities:
                found = one(sparsity, batch)
                numbers[f"{threads} threads, batch {batch}, {sparsity:.0%}"] = found
                dense = f"{found['seconds']['dense'] * 1e6:,.0f}"
                rows.append((f"{sparsity:.0%}", dense, *(f"{ratio:.2f}" for ratio in found["faster"].values())))
            print(f"\n{threads} thread{'s' * (threads > 1)}, batch {batch}: times as fast as dense")
            print(text_table(("zeros", "dense, us", *WAYS), rows), flush=True)
    return numbers


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    made.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    made.add_argument("--sparsities", type=float, nargs="+", default=[0.5, 0.8, 0.9, 0.95, 0.99])
    given = made.parse_args()
    record(given.json, main(given))
