"""The packed file of one tensor of 1 M weights: bytes beside the bound and beside other ways, and MB/s on one core.

The weights are 0, 90 or 99 % zero and take 32 values (k-means), or are float32 as they came. MB are of dense float32
weights; files are written to and read from memory-backed storage where there is one.
"""

import gzip
import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.torch
import torch
import zstandard
from torch import Tensor, nn

from benchmarks.bench import interleaved, parser, record
from prunewald.core.kmeans import kmeans_1d
from prunewald.storage import inspect, load, save

ZSTD, GZIP = 19, 9
Way = tuple[Callable[[], bytes], Callable[[bytes], object]]


def weights(side: int, sparsity: float, size: int | None) -> tuple[Tensor, Tensor]:
    """Normal weights at random places; with a size, as many shared values."""
    torch.manual_seed(0)
    count = side * side
    mask = torch.zeros(count, dtype=torch.bool)
    mask[torch.randperm(count)[: round((1 - sparsity) * count)]] = True
    dense = torch.zeros(count)
    dense[mask] = torch.randn(int(mask.sum()))
    if size is not None:
        book, codes = kmeans_1d(dense[mask], size)
        dense[mask] = book[codes.long()]
    return dense.view(side, side), mask.view(side, side)


def others(dense: Tensor, size: int | None) -> dict[str, Way]:
    """How one would store it without prunewald."""
    squeeze, expand = zstandard.ZstdCompressor(level=ZSTD), zstandard.ZstdDecompressor()

    def saved() -> bytes:
        file = io.BytesIO()
        torch.save({"w": dense}, file)
        return file.getvalue()

    def loaded(data: bytes) -> object:
        return torch.load(io.BytesIO(gzip.decompress(data)), weights_only=True)

    def csr() -> bytes:
        array = dense.numpy()
        rows, columns = np.nonzero(array)
        starts = np.searchsorted(rows, np.arange(len(array) + 1)).astype(np.uint32)
        values = array[rows, columns]
        if size is None:
            stored = values.tobytes()
        else:
            book, codes = np.unique(values, return_inverse=True)
            stored = book.tobytes() + codes.astype(np.uint8).tobytes()
        return squeeze.compress(starts.tobytes() + columns.astype(np.uint16).tobytes() + stored)

    def from_csr(data: bytes) -> object:
        plain, (side, width) = expand.decompress(data), dense.shape
        starts = np.frombuffer(plain, np.uint32, side + 1)
        kept, at = int(starts[-1]), 4 * (side + 1)
        columns = np.frombuffer(plain, np.uint16, kept, at)
        at += 2 * kept
        values = np.frombuffer(plain, np.float32, kept if size is None else size, at)
        values = values if size is None else values[np.frombuffer(plain, np.uint8, kept, at + 4 * size)]
        whole = np.zeros((side, width), np.float32)
        whole[np.repeat(np.arange(side), np.diff(starts)), columns] = values
        return whole

    return {
        f"safetensors + zstd -{ZSTD}": (
            lambda: squeeze.compress(safetensors.torch.save({"w": dense})),
            lambda data: safetensors.torch.load(expand.decompress(data)),
        ),
        f"torch.save + gzip -{GZIP}": (lambda: gzip.compress(saved(), GZIP), loaded),
        f"CSR (16-bit columns{', 8-bit codes' if size else ''}) + zstd -{ZSTD}": (csr, from_csr),
    }


def ours(dense: Tensor, mask: Tensor, folder: Path, values: str | None = None) -> dict[str, Way]:
    """The packed file, by both entropy codes; as the weights are, or with k-means."""
    model = nn.Module()
    model.register_buffer("w", dense)
    pruner: Any = SimpleNamespace(model=model, masks={"w": mask}, report=None)

    def way(codec: Any) -> Way:
        path = folder / codec

        def write() -> bytes:
            save(pruner, path, codec=codec, values=values)
            with open(path, "rb") as file:
                return file.read()

        def read(data: bytes) -> object:
            path.write_bytes(data)
            return load(path)

        return write, read

    return {f"prunewald, {name}": way(codec) for name, codec in (("ANS", "ans"), ("Huffman", "huffman"))}


def measure(side: int, sparsity: float, size: int | None, blocks: int, folder: Path) -> dict[str, Any]:
    dense, mask = weights(side, sparsity, size)
    ways = ours(dense, mask, folder) | others(dense, size)
    files = {name: write() for name, (write, _) in ways.items()}
    writers: dict[str, Callable[[], object]] = {name: write for name, (write, _) in ways.items()}
    readers: dict[str, Callable[[], object]] = {name: partial(read, files[name]) for name, (_, read) in ways.items()}
    if size is not None:
        plain, _ = weights(side, sparsity, None)
        writers |= {f"{name}, k-means": way[0] for name, way in ours(plain, mask, folder, "codebook").items()}
    writing, reading = interleaved(writers, blocks, 1), interleaved(readers, blocks, 1)
    found: dict[str, Any] = {}
    for name, data in files.items():
        found[name] = {
            "bytes": len(data),
            "encode MB/s": dense.nbytes / 1e6 / writing[name],
            "decode MB/s": dense.nbytes / 1e6 / reading[name],
        }
    for name, codec in (("prunewald, ANS", "ans"), ("prunewald, Huffman", "huffman")):
        (folder / codec).write_bytes(files[name])
        seen = inspect(folder / codec)
        (row,) = seen.tensors
        found[name] |= {"positions": row.positions, "values": row.values, "codebook": row.codebook}
        found[name] |= {"payload": row.payload, "bound": row.bound, "header": seen.header + row.overhead}
        found[name] |= {"over the bound": row.payload / row.bound - 1}
        if size is not None:
            found[name]["encode MB/s with k-means"] = dense.nbytes / 1e6 / writing[f"{name}, k-means"]
    return found


def show(title: str, found: dict[str, Any]) -> None:
    least = found["prunewald, ANS"]["bytes"]
    print(f"\n{title}; bound {found['prunewald, ANS']['bound']:,.0f} bytes")
    for name, n in found.items():
        over = f"payload {n['over the bound']:+.2%}, header {n['header']}" if "payload" in n else ""
        if "encode MB/s with k-means" in n:
            over += f"; {n['encode MB/s with k-means']:.0f} MB/s with k-means"
        speed = f"{n['encode MB/s']:8.0f}{n['decode MB/s']:8.0f} MB/s"
        print(f"  {name:44}{n['bytes']:>10,}{n['bytes'] / least:7.2f}x{speed}  {over}")


if __name__ == "__main__":
    args = parser(__doc__)
    args.add_argument("--side", type=int, default=1000, help="the tensor has side x side weights")
    args.add_argument("--blocks", type=int, default=5, help="times that every way takes its turn")
    options = args.parse_args()
    torch.set_num_threads(1)
    numbers: dict[str, Any] = {}
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=fast) as temporary:
        for size in (32, None):
            for sparsity in (0.9, 0.99, 0.0):
                title = f"{sparsity:.0%} zero, {f'{size} values' if size else 'float32'}"
                numbers[title] = measure(options.side, sparsity, size, options.blocks, Path(temporary))
                show(f"{options.side**2:,} weights, {title}", numbers[title])
    record(options.json, numbers)
