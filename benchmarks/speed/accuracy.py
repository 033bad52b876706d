"""Accuracy against latency of two trained networks: weights pruned and refitted, or whole channels and shrunk.

The networks are those of `benchmarks.refitting`, seed 0. The MLP is pruned by default and refitted with 1,024 training
images, without a step of training. The ResNet-8 loses channels until so many multiply-adds are gone; it is refitted in
the same way, or trained for two epochs. Accuracy is that of each way on all test images; latencies are of one image and
one thread, with all ways at all levels taking turns.
"""

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from benchmarks.bench import environment, turns
from benchmarks.refitting.examples import Examples, Task, epoch, task
from benchmarks.refitting.networks import NETWORKS
from benchmarks.refitting.training import restored, train_one, trained
from prunewald.quantisation import run_int8, to_onnx

LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)  # of multiply-adds
EPOCHS, CALIBRATION, SEED = 2, 1024, 0
Way = tuple[str, str, float]  # network, how it is run, level
Run = Callable[[Tensor], Any]


def mlp(found: Task, out: Path, folder: Path) -> Iterator[tuple[Way, Run]]:
    """The MLP at every level, in every way."""
    x = found.test.x[:1]
    for level in LEVELS:
        model = _refitted(found, out, level)
        file = folder / f"{level:g}.onnx"
        pw.export.to_onnx(model, found.test.x[:2], file)
        yield ("mlp", "dense", level), model
        yield ("mlp", "onnxruntime", level), _session(file)
        to_onnx(model, found.test.x[:2], file)
        yield ("mlp", "onnxruntime, int8", level), _session(file)
        yield ("mlp", "int8", level), run_int8(model, x)
        if level:
            yield ("mlp", "run_sparse", level), pw.run_sparse(model, x)


def _refitted(found: Task, out: Path, level: float) -> nn.Module:
    model, optimizer = restored("mlp", SEED, trained("mlp", SEED, out))
    with pw.Pruner(model.eval(), optimizer) as pruner:
        if level:
            pruner.prune(level, refit=found.calibration(CALIBRATION, SEED))
    return model.eval()


def resnet(found: Task, out: Path, folder: Path) -> Iterator[tuple[Way, Run]]:
    """The ResNet-8 at every level, shrunk."""
    for share in SHARES:
        for way in ("refitted", "trained") if share else ("dense",):
            small = _shrunk(found, out, share, way == "trained")
            yield ("resnet", way, share), small
            if way != "refitted":
                file = folder / f"{way}-{share:g}.onnx"
                pw.export.to_onnx(small, found.test.x[:2], file)
                yield ("resnet", f"{way}, onnxruntime", share), _session(file)


def _shrunk(found: Task, out: Path, share: float, training: bool) -> nn.Module:
    network = NETWORKS["resnet"]
    model, optimizer = restored("resnet", SEED, trained("resnet", SEED, out))
    if not share:
        return model.eval()
    batches = found.calibration(CALIBRATION, SEED)
    with pw.Pruner(model.eval(), optimizer, pattern=pw.Filter(), ignore=network.head) as pruner:
        refit = None if training else batches
        pruner.prune(share, example_inputs=found.train.x[:2], of="macs", refit=refit)
        small, going = pw.shrink(pruner, found.train.x[:2], optimizer)
    generator = torch.Generator().manual_seed(40_000 + SEED)
    for _ in range(EPOCHS if training else 0):
        epoch(small, going, found.train, network.batch, generator)
    pw.recalibrate(small, batches)
    return small.eval()


def _session(file: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def _accuracy(run: Run, test: Examples) -> float:
    assert test.y is not None
    right = [(run(x).argmax(1) == y).double() for x, y in zip(test.x.split(500), test.y.split(500), strict=True)]
    return 100 * float(torch.cat(right).mean())


@torch.inference_mode()
def _latencies(runs: dict[Way, Run], x: Tensor, blocks: int) -> dict[Way, float]:
    names = {str(way): way for way in runs}
    calls: dict[str, Callable[[], object]] = {name: partial(runs[way], x) for name, way in names.items()}
    times = turns(calls, blocks, 100, 0.005)
    return {way: statistics.median(times[name]) for name, way in names.items()}


def measure(options: Namespace) -> dict[str, Any]:
    """All points of the figure."""
    torch.set_num_threads(1)
    points = []
    for name, make in (("mlp", mlp), ("resnet", resnet)):
        train_one(name, SEED, options)
        found = task(NETWORKS[name], SEED, options.data, Path())
        assert found is not None
        with tempfile.TemporaryDirectory() as folder:
            runs = dict(make(found, options.out, Path(folder)))
        with torch.inference_mode():
            accuracies = {way: _accuracy(run, found.test) for way, run in runs.items()}
        for way, seconds in _latencies(runs, found.test.x[:1].contiguous(), options.blocks).items():
            points.append([*way, accuracies[way], seconds])
            print(f"{name} {way[1]} {way[2]:.0%}: {accuracies[way]:.2f} %, {1e6 * seconds:.0f} us", flush=True)
    return {"points": points, "environment": environment()}
