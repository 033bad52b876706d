"""int8 beside float32, in torch and in onnxruntime: latency of the paper's MLP, all ways taking turns in one run.

flock LOCK python -m benchmarks.int8 --json results/benchmarks/int8.json
"""

import copy
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.bench import parser, record
from benchmarks.step import network
from prunewald.export.onnx_file import session_of
from prunewald.quantisation import LinearValues, run_int8, to_onnx

BATCHES, THREADS, SPARSITIES = (1, 64), (1, 2), (0.0, 0.9)
FLOAT = "torch float32"
_CALLS = 5  # in a row


def quantised(sparsity: float) -> tuple[nn.Sequential, pw.Pruner]:
    """The MLP with weights of 8 bits by row, pruned or not; what they are does not change how long they take."""
    model = network("cpu")
    pruner = pw.Pruner(model, torch.optim.Adam(model.parameters()), criterion="magnitude")
    if sparsity:
        pruner.prune(sparsity)
    LinearValues(pruner, 8, per="row")
    return model.eval(), pruner


def files(pruner: pw.Pruner, x: torch.Tensor, folder: Path) -> dict[str, tuple[bytes, float]]:
    """ONNX files in float and as int8, and how far their outputs are from the model's."""
    made: dict[str, tuple[bytes, float]] = {}
    for name, data in (("float32", None), ("int8 dynamic", None), ("int8 static", [x])):
        path = folder / f"{name}.onnx"
        if name == "float32":
            difference = pw.export.to_onnx(pruner.model, x, path)
        else:
            difference = to_onnx(pruner, x, path, data=data).difference
        made[f"onnxruntime {name}"] = path.read_bytes(), difference
    return made


def measured(sparsity: float, threads: int, blocks: int) -> list[dict[str, Any]]:
    """All ways at one number of threads; in a process of its own, since threads that were started stay."""
    logging.disable(logging.WARNING)  # torch.onnx on packages that are not there
    torch.set_num_threads(threads)
    model, pruner = quantised(sparsity)
    alone = copy.deepcopy(model)  # without the Pruner, which looks after its zeros in forward passes
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        written = files(pruner, torch.rand(256, 784, generator=generator), Path(folder))
    rows = []
    for batch in BATCHES:
        x = torch.rand(batch, 784, generator=generator)
        fast: Any = run_int8(pruner, x)
        ways = {FLOAT: called(alone, x), "torch int8": called(fast, x)}
        ways |= {name: served(session_of(content, threads), x) for name, (content, _) in written.items()}
        with torch.inference_mode():
            times = in_turns(ways, blocks)
        seconds = {name: statistics.quantiles(seen, n=10)[0] for name, seen in times.items()}
        sizes: dict[str, dict[str, Any]] = {
            name: {"bytes": len(content), "difference": difference} for name, (content, difference) in written.items()
        }
        sizes["torch int8"] = {"difference": fast.report.difference, "report": fast.report.to_dict()}
        at = {"sparsity": sparsity, "threads": threads, "batch": batch}
        for name, took in seconds.items():
            speed = {"seconds": took, "median": statistics.median(times[name]), "faster": seconds[FLOAT] / took}
            rows.append({**at, "way": name, **speed, **sizes.get(name, {})})
        show(rows[-len(seconds) :], fast.report)
    return rows


def in_turns(ways: dict[str, Callable[[], object]], blocks: int) -> dict[str, list[float]]:
    """Seconds of single calls; each has its caches when the clock starts."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(blocks):
        for name, way in ways.items():
            way()
            for _ in range(_CALLS):
                began = time.perf_counter()
                way()
                times[name].append(time.perf_counter() - began)
    return times


def called(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    return lambda: model(x)


def served(session: Any, x: torch.Tensor) -> Callable[[], object]:
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)


def show(rows: list[dict[str, Any]], report: object) -> None:
    print(f"\n{rows[0]['sparsity']:.0%} zeros, batch {rows[0]['batch']}, threads {rows[0]['threads']}")
    for row in rows:
        print(f"  {row['way']:26} {row['seconds'] * 1e6:9.1f} us   {row['faster']:5.2f} times as fast as {FLOAT}")
    print(report)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--blocks", type=int, default=41)
    given = arguments.parse_args()
    rows = []
    for sparsity in SPARSITIES:
        for threads in THREADS:
            os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                rows += alone.submit(measured, sparsity, threads, given.blocks).result()
    record(given.json, rows)


if __name__ == "__main__":
    main()
