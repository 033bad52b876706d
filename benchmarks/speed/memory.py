"""Peak memory of one way, in a process that has the libraries, and nothing else."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks.bench import reset_peak, resident
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.ways import loaded

_FRESH = multiprocessing.get_context("forkserver")  # its children begin where the libraries are imported
_FRESH.set_forkserver_preload(["benchmarks.speed.memory", "onnxruntime", "transformers.models.bert.modeling_bert"])


def peak(name: str, way: str, file: Path, batch: int) -> int:
    """Bytes at the peak of reading a way and running it three times with one thread, over those before."""
    with ProcessPoolExecutor(1, mp_context=_FRESH, max_tasks_per_child=1) as process:
        return process.submit(_peak, name, way, file, batch).result()


def _peak(name: str, way: str, file: Path, batch: int) -> int:
    torch.set_num_threads(1)
    x = NETWORKS[name].example(batch)
    torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64))  # what the first product sets up is no way's own
    before = resident("VmRSS")
    reset_peak()
    run = loaded(way, file, 1, x)
    for _ in range(3):
        run()
    return resident("VmHWM") - before
