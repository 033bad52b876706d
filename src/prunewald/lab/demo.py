"""`prunewald demo`: the paper's first experiment in two minutes, as a table, a figure, a page and a pruned model.

It is `prunewald reproduce fashion-mnist --preset demo` on a CPU, without the folder of records that goes on where a
run was stopped: a demo starts afresh each time, and leaves four files.
"""

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald import web
from prunewald.ensemble import Result, RMSprop, carry
from prunewald.ensemble.replicas import build
from prunewald.figures import write
from prunewald.lab import summary
from prunewald.lab.data import Raw, embedded, load
from prunewald.lab.heading import note
from prunewald.lab.machine import Machine, environment
from prunewald.lab.methods import methods_of, parse
from prunewald.lab.networks import Networks, model_of
from prunewald.lab.pages import needs
from prunewald.lab.pool import Tick, each
from prunewald.lab.protocol import Protocol
from prunewald.lab.records import Key, Record, read_records
from prunewald.lab.reproduce import Run
from prunewald.lab.settings import Settings, SettingsError
from prunewald.lab.showing import of_demo
from prunewald.util.files import replacing
from prunewald.util.progress import progress_bar

KEPT = "moment:1@lamp"  # the method whose pruned network is saved


@dataclass(frozen=True)
class Kept:
    """What is told of the network that is saved."""

    loaded: float  # its test accuracy when it was read back from its file
    page: dict[str, Any]  # the data of a page of its Pruner


@dataclass(frozen=True)
class Demo:
    """What a demo gave: its numbers, and the folder with figure.png, page.html, results.json and model.pw."""

    settings: Settings
    data: str
    records: Sequence[Record]
    environment: dict[str, Any]
    out: Path
    loaded: float  # the test accuracy of the model that was read back from its file

    def __str__(self) -> str:
        return f"{summary.short_table(summary.lines(self.records))}\n\n{self.farewell()}"

    def farewell(self) -> str:
        """Say where the files are, how small the model is, and that it works when loaded."""
        model, key, dense = self.out / "model.pw", kept_key(self.settings), _dense_bytes(self.settings)
        stored = model.stat().st_size
        times = f"{dense / stored:.1f} times less than torch.save of the dense one: {dense:,}"
        return "\n".join(
            [
                f"page     {self.out / 'page.html'}",
                f"figure   {self.out / 'figure.png'}",
                f"numbers  {self.out / 'results.json'}",
                f"model    {model}: {key.level:.0%} pruned by {parse(key.row).label}, retrained; "
                f"loaded back, {self.loaded:.2%} of the test images right",
                f"         {stored:,} bytes, {times}",
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Every number, as JSON can hold it."""
        records = [{name: value for name, value in vars(one).items() if name != "environment"} for one in self.records]
        return {
            "settings": asdict(self.settings),
            "data": self.data,
            "environment": self.environment,
            "records": records,
            "summary": summary.as_json(summary.lines(self.records)),
        }


def demo(settings: Settings, out: Path, data: Path | None = None, workers: int = 0) -> Demo:
    """Run a demo, and write figure.png, page.html, results.json and model.pw into a folder, over earlier ones.

    `data` is a folder with the full Fashion-MNIST; without it the embedded part is taken, whatever the environment
    says. `workers` is the number of processes, 0 for one a processor; it changes no number.
    """
    if settings.repetitions < 2:
        raise SettingsError(f"--seeds={settings.repetitions}: give 2 or more, since an interval needs two networks")
    _need_extras()
    read: Callable[[], Raw] = embedded if data is None else partial(load, settings.experiment, data)
    source, machine = read().source, Machine(device="cpu", workers=workers)  # bad ones show before the work begins
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with TemporaryDirectory(prefix="prunewald-", ignore_cleanup_errors=True) as folder:
        run = Run(settings, Path(folder), machine, read)
        kept = _train(run, out / "model.pw")
        records = read_records(run.out / settings.name)
    used = {"processes": run.workers(), "threads": 1, "seconds": round(time.perf_counter() - began, 1)}
    found = Demo(settings, source, records, environment(torch.device("cpu")) | used, out, kept.loaded)
    write(figure(settings, source, records), out / "figure.png")
    web.write(of_demo(settings, source, records, found.environment, kept.page), out / "page.html")
    with replacing(out / "results.json") as file:
        file.write((json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n").encode())
    return found


def figure(settings: Settings, data: str, records: Sequence[Record]) -> Any:
    """The demo's figure, of its records."""
    text = note(settings, data, settings.rows)
    return summary.figure(summary.lines(records), "test accuracy, pruned and retrained", note=text)


def kept_key(settings: Settings) -> Key:
    """Which network is saved: the first, pruned by default to the level nearest to 90 %."""
    return Key(settings.first_seed, KEPT, min(settings.levels, key=lambda level: abs(level - 0.9)))


def epochs_of(settings: Settings) -> int:
    """The epochs of a demo: of each network's training, its control's, those after each pruning, and the kept one's."""
    cells = 1 + len(settings.levels) * (len(methods_of(settings)) - 1)
    return settings.repetitions * (settings.epochs + settings.retrain_epochs * cells) + settings.retrain_epochs


def _train(run: Run, path: Path) -> Kept:
    """Make all records and save one network, in processes of one thread each."""
    with progress_bar(total=epochs_of(run.settings), unit="epoch") as bar:
        parts = each(partial(_part, run, path), run.parts(), run.workers(), bar)
    return next(kept for kept in parts if kept is not None)


def _part(run: Run, path: Path, seeds: Sequence[int], tick: Tick) -> Kept | None:
    """What one process does; what is told of the saved network, if it is among its own."""
    said = [""]

    def say(text: str) -> None:
        said[0] = text.partition(" ")[0]  # whether they are trained or retrained; a bar has no place for more

    def finished(epochs: int) -> None:
        for _ in range(epochs):
            tick(said[0])

    protocol = run.protocol(seeds, run.read(), say, progress=finished)
    protocol.run()
    return _save_kept(protocol, path) if kept_key(run.settings).seed in seeds else None


def _save_kept(protocol: Protocol, path: Path) -> Kept:
    """Save one of the pruned and retrained networks with its report, and read it back."""
    networks, key = protocol.networks, kept_key(protocol.networks.settings)
    pruner, before = _pruned(networks, protocol.cache.load("dense", [key.seed]), key)
    pw.save(pruner, path)
    data = web.of_pruner(pruner, before=before, inputs=torch.zeros(1, 1, 28, 28), file=path)
    loaded = pw.load(path, into=build(networks.make, key.seed))
    found = networks.test({name: tensor[None] for name, tensor in loaded.state_dict().items()})[0]
    return Kept(found, data)


def _pruned(networks: Networks, dense: Result, key: Key) -> tuple[pw.Pruner, dict[str, Any]]:
    """The network of a record once more, as a model with its Pruner, and the planes that it was pruned by.

    The protocol keeps only numbers of it.
    """
    settings, model = networks.settings, dense.module(0)
    params: dict[str, Tensor] = dict(model.named_parameters())
    optimizer = RMSprop(lr=settings.lr).build(params.values())
    carry.restore_(optimizer, params, carry.unstacked(dense.optimizer_state))
    method = parse(key.row)
    chosen: dict[str, Any] = {"criterion": method.criterion(key.seed), "scope": method.allocation}
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.SecondMoment(), targets=[nn.Linear], **chosen)
    before = web.look(pruner)
    pruner.prune(key.level)
    masks = {name: mask[None] for name, mask in pruner.masks.items()}
    retrained = networks.retrained(dense, masks, settings.epochs, collect=False)
    model.load_state_dict(retrained.module(0).state_dict())
    return pruner, before


def _dense_bytes(settings: Settings) -> int:
    buffer = io.BytesIO()
    torch.save(build(model_of(settings, 10), 0).state_dict(), buffer)
    return buffer.tell()


def _need_extras() -> None:
    """Fail before the work, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
        import scipy.stats  # noqa: F401
    except ImportError as error:
        raise ImportError(needs(error)) from error
