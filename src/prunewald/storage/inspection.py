"""Where the bytes of a packed file are, by tensor, beside a bound that they could hardly go below."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from prunewald.pruning.report import Report
from prunewald.storage import container, mask_file, positions, sections
from prunewald.storage.container import Contents, blaming, check_max_bytes, check_size
from prunewald.storage.index import Packing, TensorEntry, compact
from prunewald.storage.packed import read_index
from prunewald.storage.state_dict import unpack
from prunewald.util.files import FilePath
from prunewald.util.tables import html_table, text_table
from prunewald.util.text import printable

_WORDS = ("tensor", "shape", "stored as")
_NUMBERS = ("kept", "positions", "values", "codebook", "overhead", "bits a weight", "bound")


@dataclass(frozen=True)
class StoredTensor:
    """The bytes of one tensor in a packed file.

    `overhead` are those that header and index need to describe it. The `bound`, in bytes, is log2 C(n, k) for the
    places of k survivors among n, the order-0 entropy of the values' codes (or of each byte of a value), and the
    codebook.
    """

    name: str
    shape: tuple[int, ...]
    stored: str  # "dense", a dtype, "codebook", "linear", "mask"
    weights: int
    kept: int
    positions: int
    codebook: int
    values: int
    overhead: int
    bound: float

    @property
    def payload(self) -> int:
        """The bytes of the tensor itself, without the overhead."""
        return self.positions + self.codebook + self.values

    @property
    def bits_per_weight(self) -> float:
        """Bits of payload for each weight, kept or not."""
        return 8 * self.payload / self.weights if self.weights else math.nan


@dataclass(frozen=True)
class Inspection:
    """What a packed file holds and where its bytes are. Prints as a table."""

    path: str
    version: str
    size: int
    tensors: Sequence[StoredTensor]
    report: Report | None = None

    @property
    def total(self) -> StoredTensor:
        """All tensors together."""
        counts = ("weights", "kept", "positions", "codebook", "values", "overhead")
        sums: dict[str, Any] = {name: sum(getattr(row, name) for row in self.tensors) for name in counts}
        return StoredTensor("total", (), "", bound=math.fsum(row.bound for row in self.tensors), **sums)

    @property
    def header(self) -> int:
        """Bytes that belong to no tensor: the rest of the header, the report, the checksum."""
        return self.size - self.total.payload - self.total.overhead

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        rows = [asdict(row) | {"bits_per_weight": _finite(row.bits_per_weight)} for row in self.tensors]
        report = None if self.report is None else self.report.to_dict()
        head = {"path": self.path, "version": self.version, "size": self.size, "header": self.header}
        return head | {"tensors": rows, "report": report}

    def __str__(self) -> str:
        return f"{self._title()}\n{text_table(**self._table())}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._title())}</p>{html_table(**self._table())}"

    def _title(self) -> str:
        sizes = f"{self.size:,} bytes, {self.header:,} of them header and report"
        return f"{printable(self.path)}: format {self.version}, {sizes}"

    def _table(self) -> dict[str, Any]:
        rows, left = [_cells(row) for row in self.tensors], range(len(_WORDS))
        return {"head": (*_WORDS, *_NUMBERS), "rows": rows, "left": left, "total": _cells(self.total)}


def inspect(path: FilePath, *, max_bytes: int | None = None) -> Inspection:
    """Tell where the bytes of a packed file are; a PackedFileError if it is none. `max_bytes` is as for `load`."""
    check_max_bytes(max_bytes)
    with blaming(path):
        contents = container.read(path)
        report = None
        if mask_file.holds_masks(contents.index):
            rows = _masks(contents, max_bytes)
        else:
            entries, report = read_index(contents)
            check_size(contents.size, sum(entry.nbytes for entry in entries), max_bytes)
            unpack(entries, contents.tensors)  # so that all of it is checked
            rows = [_row(contents, entry) for entry in entries]
        return Inspection(str(path), container.VERSION, contents.size, rows, report)


def _row(contents: Contents, entry: TensorEntry) -> StoredTensor:
    stored = contents.tensors[entry.key]
    packed = entry.packed or Packing(entry.count, "dense", (0, 0, stored.nbytes))
    extra = _overhead(contents, entry.key, entry.to_dict())
    bound = sections.bound(entry, stored) / 8
    places, book, values = packed.bytes
    name = " = ".join(entry.names)
    return StoredTensor(name, entry.shape, packed.values, entry.count, packed.kept, places, book, values, extra, bound)


def _masks(contents: Contents, max_bytes: int | None) -> list[StoredTensor]:
    rows = []
    for name, mask in mask_file.unpack(contents, max_bytes).items():
        shape, count, kept = tuple(mask.shape), mask.numel(), int(mask.sum())
        extra = _overhead(contents, f"mask/{name}", {"name": name, "shape": shape, "kept": kept})
        size, bound = contents.tensors[f"mask/{name}"].nbytes, positions.bound(count, kept) / 8
        rows.append(StoredTensor(name, shape, "mask", count, kept, size, 0, 0, extra, bound))
    return rows


def _overhead(contents: Contents, key: str, row: dict[str, Any]) -> int:
    """Bytes of the header, as prunewald writes it, that are there for one tensor."""
    in_index = len(compact(compact(row)).encode()) - 1  # a string in a string, without its quotes; a comma
    return in_index + len(compact({key: contents.header[key]}).encode()) - 1


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cells(row: StoredTensor) -> tuple[str, ...]:
    shape = "x".join(map(str, row.shape))
    share = f"{row.kept:,} ({row.kept / row.weights:.1%})" if row.weights else "0"
    numbers = (row.positions, row.values, row.codebook, row.overhead)
    bits = [f"{8 * size / row.weights:.3f}" if row.weights else "-" for size in (row.payload, row.bound)]
    return (row.name, shape, row.stored, share, *(f"{n:,}" for n in numbers), *bits)
