"""Results, one file each: a record is written whole when it is finished, and named by what it is of.

A folder of results has a `settings.json` and `records/ROW/SEED-LEVEL.json`. Runs may share it, and folders of several
machines merge by copying, since the same record has the same name everywhere.
"""

import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from prunewald.lab.data import counted
from prunewald.lab.methods import parse
from prunewald.lab.settings import EXPERIMENTS, Settings, SettingsError, settings
from prunewald.util.files import replacing
from prunewald.util.text import printable

FORMAT = "prunewald results 1"
ROUNDING = 2.5  # images that may be seen in another way when the same network is measured on another machine
_SHARES = ("level", "dense", "pruned", "retrained", "validation", "sparsity", "frozen", "recalibrated")
_LARGEST = 1 << 16  # bytes of a record, more than enough
_MOST, _LARGEST_SUM = 200_000, 1 << 28  # files of an archive, and their bytes: a record takes about 450
_LARGEST_NUMBER = 1e12  # so that sums stay finite


class ResultsError(ValueError):
    """A results folder or archive that is damaged, or of something else."""


@dataclass(frozen=True)
class Key:
    """What a result is of: a network by its seed, a method by its spelling, a level."""

    seed: int
    row: str
    level: float

    @property
    def path(self) -> str:
        """The file within a results folder."""
        return f"records/{self.row.replace(':', '_')}/{self.seed:05}-{self.level:g}.json"


@dataclass(frozen=True)
class Record:
    """One network pruned by one row to one level. Accuracies are shares; of the test set, unless they say otherwise."""

    seed: int
    row: str
    level: float
    dense: float  # before pruning
    pruned: float  # at once
    retrained: float
    validation: float  # after retraining
    sparsity: float  # of the dense layers' weights
    compression: float  # all parameters over those left
    speedup: float  # theoretical: multiplications, dense over sparse
    overlap: float  # of the mask with magnitude's
    frozen: float | None  # among the weights kept, the share that no gradient reached
    environment: dict[str, Any]
    recalibrated: float | None = None  # at once, but with BatchNorm's statistics measured anew, where it has any

    @property
    def key(self) -> Key:
        """What the record is of."""
        return Key(self.seed, self.row, self.level)


class RecordFolder:
    """A folder of records of one experiment with one identity."""

    def __init__(self, out: str | Path, settings: Settings, source: str) -> None:
        self.folder = Path(out) / settings.name
        # Through JSON, so that it is what the file gives back.
        here = json.loads(json.dumps({"format": FORMAT, "data": source, "identity": settings.identity()}))
        file = self.folder / "settings.json"
        if not file.exists() and (strange := _strange(self.folder)) and not file.exists():
            raise ResultsError(f"{self.folder} has {strange} and no settings.json: give another --out")
        if file.exists():
            _check_same(file, here)
            return
        (self.folder / "records").mkdir(parents=True, exist_ok=True)
        with replacing(file) as out_file:
            out_file.write(json.dumps(here, indent=1, sort_keys=True).encode())

    def has(self, key: Key) -> bool:
        """Whether a result is finished."""
        return (self.folder / key.path).exists()

    def write(self, record: Record) -> None:
        """Keep a finished result, unless there is one."""
        path = self.folder / record.key.path
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write((json.dumps(_plain(record), allow_nan=False) + "\n").encode())

    def dense(self, seed: int) -> float | None:
        """The accuracy of the network that the records of a seed began with, if there are any."""
        return next((record.dense for record in _records(self.folder, f"{seed:05}-*")), None)

    def read(self) -> list[Record]:
        """All finished results, in order."""
        return read_records(self.folder)


def _plain(record: Record) -> dict[str, Any]:
    """A record as plain data; what only networks with BatchNorm have is left out of the others'."""
    found = asdict(record)
    return found if record.recalibrated is not None else {n: v for n, v in found.items() if n != "recalibrated"}


def _strange(folder: Path) -> str:
    """What a folder holds that no run which is just beginning there could have made."""
    if any(folder.glob("records/*")):
        return "records"
    return next((path.name for path in sorted(folder.glob("[!.]*")) if path.name != "records"), "")


def _check_same(file: Path, here: dict[str, Any]) -> None:
    """A folder of other settings is left alone."""
    there = _settings(file.read_bytes(), file)
    flat, mine = ({**each, **each["identity"], "identity": None} for each in (there, here))
    for name in sorted(flat.keys() | mine.keys()):
        if flat.get(name) != mine.get(name):
            raise ResultsError(
                f"{file} was written by other code, for other settings or other data: its {name} is "
                f"{flat.get(name)!r}, not {mine.get(name)!r}; give another --out; nothing was changed"
            )


def _settings(content: bytes, where: object) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{where} is damaged ({error})") from error
    if not (isinstance(found, dict) and isinstance(found.get("identity"), dict) and found.get("format") == FORMAT):
        raise ResultsError(f"{where} was written by other code: it is not of the form {FORMAT!r}")
    if found["identity"].get("experiment") not in list(EXPERIMENTS) or not isinstance(found.get("data"), str):
        raise ResultsError(f"{where} was written by other code: it names no experiment and data that are known")
    return found


def experiment_of(folder: str | Path) -> str:
    """Which experiment a results folder is of."""
    return str(_settings_of(folder)["identity"]["experiment"])


def data_of(folder: str | Path) -> str:
    """Which data the results of a folder are of, in words that are safe to print."""
    return printable(_settings_of(folder)["data"])


def settings_of(folder: str | Path) -> Settings:
    """The settings of a results folder; its seeds and rows are those of the records, which this does not look at."""
    identity = dict(_settings_of(folder)["identity"])
    try:
        return settings(identity.pop("experiment"), "paper", **identity)
    except SettingsError as error:
        raise ResultsError(f"{folder}/settings.json was written by other code: {error}") from error


def _settings_of(folder: str | Path) -> dict[str, Any]:
    file = Path(folder) / "settings.json"
    if not file.is_file():
        raise ResultsError(f"{folder} is no results folder: it has no settings.json")
    return _settings(file.read_bytes(), file)


def read_records(folder: str | Path) -> list[Record]:
    """All records of a folder, of whatever settings, in order; those of one seed are of the same network."""
    data = data_of(folder)
    found = sorted(_records(Path(folder)), key=lambda r: (r.row, r.level, r.seed))
    _check_networks(found, data, folder)
    return found


def _check_networks(found: Iterable[Record], data: str, where: object) -> None:
    """Rows of a seed are compared with each other: refuse such as did not begin with the same network."""
    images = counted(data)
    same = ROUNDING / (images[1] if images else 10_000)
    first: dict[int, Record] = {}
    for record in found:
        other = first.setdefault(record.seed, record)
        if abs(record.dense - other.dense) > same:
            network, another = (f"{r.row} at {r.level:.0%} began with one of {r.dense:.2%}" for r in (other, record))
            raise ResultsError(
                f"{where}: the rows of seed {record.seed} are of different networks, by their dense test accuracy: "
                f"{network}, {another}; they cannot be compared: keep the records of one run in each folder"
            )


def _records(root: Path, name: str = "*") -> Iterator[Record]:
    for path in root.glob(f"records/*/{name}.json"):
        try:
            yield _record(path.read_bytes(), path.relative_to(root).as_posix())
        except ResultsError as error:
            raise ResultsError(f"{path} {error}: delete it to compute it again") from error


def _record(content: bytes, name: str) -> Record:
    """Check a record that was read from the file of this name."""
    try:
        record = Record(**json.loads(content))
        _check_values(record)
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultsError(f"is no record ({error})") from error
    if (own := record.key.path) != name:
        raise ResultsError(f"holds the record of {own}")
    return record


def _check_values(record: Record) -> None:
    """Refuse values of types or sizes that no result has; JSON may say anything."""
    numbers = {field.name: getattr(record, field.name) for field in fields(Record) if field.type is float}
    optional = {"frozen": record.frozen, "recalibrated": record.recalibrated}
    numbers |= {name: value for name, value in optional.items() if value is not None}
    for name, value in numbers.items():
        if type(value) not in (int, float) or not -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER:  # NaN is not between
            raise TypeError(f"{name} is {_short(value)}")
        if name in _SHARES and not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}, no share")
    if type(record.seed) is not int or not 0 <= record.seed < 2**63:
        raise TypeError(f"seed is {_short(record.seed)}")
    if not isinstance(record.environment, dict):
        raise TypeError(f"environment is {_short(record.environment)}")
    if not isinstance(record.row, str):
        raise TypeError(f"row is {_short(record.row)}")
    if record.row != (spelled := parse(record.row).text):
        raise ValueError(f"row is {_short(record.row)}, not {spelled!r}")


def _short(value: object) -> str:
    return printable(repr(value), longest=80)


def export(folder: str | Path, archive: str | Path) -> int:
    """Pack a results folder into one archive (.tar.xz), the same bytes for the same results; returns the records."""
    root = Path(folder)
    records = read_records(root)
    if Path(archive).exists():
        raise ResultsError(f"{archive} is there already: give another name")
    names = ["settings.json", *sorted(record.key.path for record in records)]
    with replacing(archive) as file, tarfile.open(fileobj=file, mode="w:xz", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            content = (root / name).read_bytes()
            entry = tarfile.TarInfo(f"{root.resolve().name}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return len(records)


def import_(archive: str | Path, out: str | Path) -> tuple[Path, int]:
    """Unpack an archive beside what is there: records that are there stay; returns the folder and the new records."""
    try:
        with tarfile.open(archive, mode="r:xz", tarinfo=_PlainEntry) as tar:
            root, files, found = _checked(_contents(tar))
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, ResultsError) as error:
        raise ResultsError(f"{archive} is no archive of results: {error}") from error
    folder = Path(out) / root
    mine = folder / "settings.json"
    there = _settings(files["settings.json"], archive)
    if mine.exists():
        _check_same(mine, there)
        found = [*read_records(folder), *found]
    _check_networks(found, there["data"], f"{archive}, with what is in {folder}" if mine.exists() else archive)
    new = [path for path in files if not (folder / path).exists()]
    for path in new:  # the settings first, as a run does
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder / path) as file:
            file.write(files[path])
    return folder, len([path for path in new if path != "settings.json"])


class _PlainEntry(tarfile.TarInfo):
    """An entry as `export` writes it; any other, such as a header of pax that has gigabytes, is refused unread."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read the 512 bytes that each entry begins with."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.size > _LARGEST:
            raise ResultsError(f"{entry.name!r} in it is no plain file of at most {_LARGEST:,} bytes")
        return entry


def _contents(tar: tarfile.TarFile) -> dict[str, bytes]:
    """The files of an archive by name, as long as there are not too many of them."""
    found: dict[str, bytes] = {}
    total = 0
    for count, entry in enumerate(tar, start=1):
        total += entry.size
        if count > _MOST or total > _LARGEST_SUM:
            raise ResultsError(f"it holds more than {_MOST:,} files, or more than {_LARGEST_SUM:,} bytes")
        file = tar.extractfile(entry)
        found[entry.name] = b"" if file is None else file.read()
    return found


def _checked(entries: dict[str, bytes]) -> tuple[str, dict[str, bytes], list[Record]]:
    """The folder's name and its files, settings first, none of which may lead elsewhere; and the records in them."""
    roots = {name.split("/")[0] for name in entries}
    root = roots.pop() if len(roots) == 1 else ""
    if root in ("", ".", "..") or "\\" in root or not root.isprintable() or f"{root}/settings.json" not in entries:
        raise ResultsError(f"it does not hold one results folder, but {sorted(entries)[:3]}")
    first = entries[f"{root}/settings.json"]
    _settings(first, "its settings.json")
    files, records = {"settings.json": first}, []
    for path, content in sorted(entries.items()):
        name = path.removeprefix(f"{root}/")
        if name != "settings.json":
            try:
                records.append(_record(content, name))  # whose name is made of a row that is known, a seed and a level
            except ResultsError as error:
                raise ResultsError(f"{name!r} {error}") from error
            files[name] = content
    return root, files, records
