"""The demo: the paper's first experiment in two minutes, as a table, a figure and a pruned model."""

import io
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import prunewald as pw
from prunewald.figures import Marks, accuracy_drop, write
from prunewald.lab.architectures import PaperCNN
from prunewald.lab.data import fashion_mnist
from prunewald.lab.loop import accuracy
from prunewald.lab.pool import Tick, cpus, each
from prunewald.lab.table import rows, table
from prunewald.lab.trial import ABS, BOOTSTRAP, MOMENT, Keep, Settings, Trial, run_trial, ticks
from prunewald.util.progress import progress_bar

STYLE = {ABS: ("black", "x"), BOOTSTRAP: ("darkorange", "^"), MOMENT: ("tab:blue", "s")}


@dataclass(frozen=True)
class Demo(Settings):
    """The demo's settings: those of a trial, how many seeds, where the files go, how many processes."""

    seeds: int = 6
    out: Path = Path("demo")
    workers: int = 0  # 0: as many as there are processors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds < 2:
            raise ValueError(f"seeds {self.seeds}: give 2 or more, since an interval needs two networks")
        if self.workers < 0:
            raise ValueError(f"workers {self.workers}: give 1 or more, or 0 for one a processor")


@dataclass(frozen=True)
class DemoResult:
    """What a demo gave: every number, and the files it wrote."""

    config: Demo
    trials: tuple[Trial, ...]
    environment: dict[str, Any]
    model: Path
    figure: Path
    numbers: Path

    def __str__(self) -> str:
        return table(self.trials)

    def to_dict(self) -> dict[str, Any]:
        """Every number, as JSON can hold it."""
        return {
            "config": {name: _plain(value) for name, value in asdict(self.config).items()},
            "environment": self.environment,
            "trials": [asdict(trial) for trial in self.trials],
            "summary": [asdict(row) for row in rows(self.trials)],
        }


def run(config: Demo) -> DemoResult:
    """Run the demo and write figure.png, results.json and model.pw into its folder."""
    _need_extras()
    fashion_mnist(0, config.data)  # a bad folder should show before the work begins
    config.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    workers = min(config.workers or cpus(), config.seeds)
    with progress_bar(total=config.seeds * ticks(config), unit="epoch") as bar:
        trials = each(partial(_one, config, _keep(config)), range(config.seeds), workers, bar)
    environment = _environment(workers, time.perf_counter() - start)
    paths = (config.out / name for name in ("model.pw", "figure.png", "results.json"))
    result = DemoResult(config, tuple(trials), environment, *paths)
    write(_figure(trials), result.figure)
    _write_json(result.to_dict(), result.numbers)
    return result


def farewell(result: DemoResult) -> str:
    """Say where the files are, how small the model is, and that it works when loaded."""
    keep, data = _keep(result.config), fashion_mnist(0, result.config.data)
    model = pw.load(result.model, into=PaperCNN())
    stored, dense = result.model.stat().st_size, _dense_bytes()
    return "\n".join(
        [
            f"figure   {result.figure}",
            f"numbers  {result.numbers}",
            f"model    {result.model}: {keep.level:.0%} pruned by {keep.method}, retrained; "
            f"loaded back, {accuracy(model, *data.test):.2%} of the test images right",
            f"         {stored:,} bytes, {dense / stored:.1f} times less than torch.save of the dense one: {dense:,}",
        ]
    )


def _keep(config: Demo) -> Keep:
    return Keep(MOMENT, min(config.levels, key=lambda level: abs(level - 0.9)), config.out / "model.pw")


def _one(config: Demo, keep: Keep, seed: int, tick: Tick) -> Trial:
    return run_trial(config, seed, tick, keep if seed == 0 else None)


def _figure(trials: Sequence[Trial]) -> Any:
    marks, summary = [], rows(trials)
    for method, (color, marker) in STYLE.items():
        chosen = [row for row in summary if row.method == method]
        drops = [row.drop for row in chosen]
        marks.append(
            Marks(
                method,
                [row.level for row in chosen],
                [drop.mean for drop in drops],
                [drop.low for drop in drops],
                [drop.high for drop in drops],
                color,
                marker,
            )
        )
    control = 100 * statistics.fmean(trial.control - trial.dense for trial in trials)
    title = f"Fashion-MNIST, pruned and retrained; mean of {len(trials)} networks, 95 % intervals"
    return accuracy_drop(marks, control, title)


def _environment(workers: int, seconds: float) -> dict[str, Any]:
    return {
        "prunewald": pw.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processes": workers,
        "threads": 1,
        "seconds": round(seconds, 1),
    }


def _dense_bytes() -> int:
    buffer = io.BytesIO()
    torch.save(PaperCNN().state_dict(), buffer)
    return buffer.tell()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _write_json(content: dict[str, Any], path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _need_extras() -> None:
    """Fail before the work, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
        import scipy.stats  # noqa: F401
    except ImportError as error:
        raise ImportError(f"the demo needs {error.name}: pip install 'prunewald[demo]'") from error
