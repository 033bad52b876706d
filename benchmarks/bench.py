"""What every benchmark shares: interleaved timing, peak memory, and a JSON record with the environment."""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def interleaved(ways: dict[str, Callable[[], object]], blocks: int, inner: int) -> dict[str, float]:
    """Median seconds a call, all ways taking turns in one run, so that a slow minute hits them alike."""
    return {name: statistics.median(values) for name, values in turns(ways, blocks, inner).items()}


def turns(ways: dict[str, Callable[[], object]], blocks: int, inner: int, rest: float = 0.0) -> dict[str, list[float]]:
    """Seconds a call in each block, in which every way has its turn.

    `rest` is slept before each turn: threads wait busily for a while after their work, and would slow the next one.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(blocks):
        for name, way in ways.items():
            time.sleep(rest)
            way()  # the caches belong to this way when the clock starts
            wait()
            began = time.perf_counter()
            for _ in range(inner):
                way()
            wait()
            times[name].append((time.perf_counter() - began) / inner)
    return times


def wait() -> None:
    """Until a GPU has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_over_start(code: str, clock: str = "perf_counter") -> tuple[float, float]:
    """Run a snippet in a new process; seconds and peak memory of what stands below its line "#---".

    With the clock "process_time" they are seconds of processors, which a busy machine does not make more of.
    """
    setup, job = code.split("#---\n")
    script = (
        f"{setup}\nimport gc, json, time, resource\nfrom benchmarks.bench import resident, reset_peak\n"
        f"gc.collect(); before = resident('VmRSS'); reset_peak(); began = time.{clock}()\n{job}\n"
        f"print(json.dumps([time.{clock}() - began, resident('VmHWM') - before]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, peak = json.loads(out.stdout.splitlines()[-1])
    return seconds, peak


def resident(field: str) -> int:
    """Bytes of memory this process holds (VmRSS) or has held at its peak (VmHWM); Linux."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Start the peak anew."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def environment() -> dict[str, Any]:
    """What a number depends on."""
    model = next((x.split(":")[1].strip() for x in _cpu_info() if x.startswith("model name")), platform.processor())
    return {
        "command": " ".join(["python -m", _module(), *_arguments()]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _arguments() -> list[str]:
    """What was asked for, without where the numbers go."""
    asked = sys.argv[1:]
    at = next((i for i, word in enumerate(asked) if word in ("--json", "--table")), len(asked))
    return asked[:at] + asked[at + 2 :]


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else "benchmarks"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Every benchmark can write its numbers."""
    made = argparse.ArgumentParser(description=doc)
    made.add_argument("--json", type=Path, help="write the numbers and the environment to this file")
    return made


def record(path: Path | None, numbers: Any) -> None:
    """Write the numbers with the environment they were measured in."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_text(json.dumps({"environment": environment(), "numbers": numbers}, indent=1) + "\n")
    new.replace(path)
