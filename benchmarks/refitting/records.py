"""Records: one file a network and seed while it is measured, one packed file of all that is committed."""

import json
import lzma
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prunewald.util.files import replacing

PACKED = "records.json.xz"


@dataclass(frozen=True)
class Record:
    """One network pruned in one way to one level."""

    network: str
    seed: int
    way: str
    level: str  # "0.95" or "2:4"; "0" of the dense network
    accuracy: float  # on test examples, in percent; of text, of the next byte
    bits: float  # cross entropy on the same
    kept: float  # the share of weights left
    seconds: float  # of choosing, refitting or training on


class Records:
    """What is finished of one network of one seed."""

    def __init__(self, out: Path, network: str, seed: int) -> None:
        self.file = out / "records" / f"{network}-{seed:02}.json"
        self.lines: dict[str, Any] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def has(self, *names: str) -> bool:
        """Whether all of these are there."""
        return all(name in self.lines for name in names)

    def write(self, new: dict[str, Any]) -> None:
        """Add what was found; the file is replaced as a whole."""
        self.lines |= new
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.file) as draft:
            draft.write(json.dumps(self.lines, indent=0).encode())


def key(way: str, level: str) -> str:
    """The name of a record within its file."""
    return f"{way} {level}"


def pack(out: Path, about: dict[str, Any]) -> None:
    """Put all records of a folder into one file, the same bytes for the same records."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted((out / "records").glob("*.json"))}
    content = json.dumps({"about": about, "networks": found}, indent=0, sort_keys=True).encode()
    with replacing(out / PACKED) as draft:
        draft.write(lzma.compress(content, preset=9))


def unpack(file: Path) -> tuple[list[Record], list[dict[str, Any]], dict[str, Any]]:
    """Records in order, reconstructions, and what they are of."""
    found = json.loads(lzma.decompress(file.read_bytes()))
    every = [line for own in found["networks"].values() for _, line in sorted(own.items())]
    records = [Record(**line) for line in every if "accuracy" in line]
    return records, [line for line in every if "layers" in line], found["about"]


def line(record: Record) -> dict[str, Any]:
    """A record as its file has it."""
    numbers = {"accuracy": 4, "bits": 6, "kept": 6, "seconds": 2}
    return {n: round(v, numbers[n]) if n in numbers else v for n, v in asdict(record).items()}
