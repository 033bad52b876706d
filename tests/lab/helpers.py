"""An experiment of seconds: few images, no dropout, the paper's networks and the lab's own code."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from prunewald.lab.cache import Cache
from prunewald.lab.data import Images, Raw
from prunewald.lab.networks import Networks
from prunewald.lab.pieces import Pieces
from prunewald.lab.protocol import Protocol
from prunewald.lab.records import Record, RecordFolder
from prunewald.lab.settings import Settings, settings


@cache
def raw(name: str = "fashion-mnist") -> Raw:
    """Noisy images of ten patterns, a few of each."""
    generator = torch.Generator().manual_seed(3)
    patterns = torch.zeros(10, 1, 28, 28)
    for label, pattern in enumerate(patterns):
        row, column = divmod(label, 4)
        pattern[0, 9 * row : 9 * row + 9, 7 * column : 7 * column + 7] = 0.8

    def part(each: int) -> Images:
        y = torch.arange(10).repeat_interleave(each)
        noise = torch.rand(len(y), 1, 28, 28, generator=generator)
        return Images((255 * (patterns[y] * noise[:, :, :1, :1] + 0.2 * noise)).byte(), y)

    return Raw(name, "ten patterns", tuple("0123456789"), part(16), part(30))


def little(experiment: str = "fashion-mnist", **given: Any) -> Settings:
    """Settings of seconds."""
    plain: dict[str, Any] = {
        "epochs": 3,
        "retrain_epochs": 2,
        "repetitions": 2,
        "batch_size": 20,
        "levels": (0.5, 0.9),
        "last": 10,
    }
    plain |= {"rows": ("abs", "moment:1"), "dropout": 0.0, "lr": 0.001}
    return settings(experiment, **(plain | given))


def protocol(out: Path, chosen: Settings, said: list[str] | None = None, **given: Any) -> Protocol:
    """The experiment of these settings in a folder; what it says goes into a list."""
    data = raw(chosen.experiment)
    networks = Networks.of(chosen, data, torch.device("cpu"), progress=False)
    results = RecordFolder(out, chosen, data.source)
    cache = Cache(results.folder / "networks", networks.make)
    say = given.pop("say", ([] if said is None else said).append)
    return Protocol(networks, results, cache, chosen.seeds, Pieces(cache, **given), {}, say)


def run(out: Path, chosen: Settings, **given: Any) -> list[Record]:
    """All its records."""
    one = protocol(out, chosen, **given)
    one.run()
    return one.results.read()


def numbers(records: list[Record]) -> list[tuple[object, ...]]:
    """All of them that do not depend on when and where they were made."""
    return [tuple(value for name, value in vars(record).items() if name != "environment") for record in records]
