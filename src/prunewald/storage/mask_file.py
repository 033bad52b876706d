"""A file of masks alone, in the same container as a packed model."""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from prunewald.model.masking import check_masks
from prunewald.storage import container
from prunewald.storage.container import Contents, blaming, check_max_bytes, check_size
from prunewald.storage.index import check_length, check_shape, compact, is_count, nonsense, unique
from prunewald.storage.positions import Positions, allowed, decode, encode
from prunewald.storage.state_dict import check_keys, unfit
from prunewald.util.files import FilePath

_NONE = torch.zeros(0, dtype=torch.uint8, device="cpu")


def save(masks: Mapping[str, Tensor], path: FilePath, *, positions: Positions = "auto") -> None:
    """Save masks, such as `pruner.masks`: near the entropy of the places, no pickle, whole or not at all.

    `positions`: "gaps" (Huffman), "ans", "bits" (a bit for each weight), or the smallest ("auto").
    """
    check_masks(masks, empty=False)
    codecs = allowed(positions, "auto")
    for name, mask in masks.items():
        check_length(name)
        if reason := unfit(mask):
            raise ValueError(f"cannot store the mask of {name!r}: it is {reason}")
    rows, stored = [], {}
    for name, mask in masks.items():
        alive = mask.detach().cpu().contiguous().view(torch.uint8) != 0  # a view of something else has other bytes
        data = encode(alive.reshape(-1).numpy(), codecs)
        stored[f"mask/{name}"] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else _NONE
        rows.append({"name": name, "shape": list(mask.shape), "kept": int(alive.sum())})
    container.write(path, compact({"masks": rows}), stored)


def load(path: FilePath, *, max_bytes: int | None = None) -> dict[str, Tensor]:
    """Load what `save` wrote, on the CPU; a PackedFileError if the file is damaged, or holds anything else.

    Masks of up to `max_bytes` in all are read: 1 GiB, or 256 times the file if that is more.
    """
    check_max_bytes(max_bytes)
    with blaming(path):
        return unpack(container.read(path), max_bytes)


def unpack(contents: Contents, max_bytes: int | None) -> dict[str, Tensor]:
    """Put the masks together; a ValueError with the reason if index and stored tensors disagree."""
    rows = _parse(contents.index)
    check_keys({f"mask/{name}" for name in rows}, contents.tensors)
    check_size(contents.size, sum(math.prod(shape) for shape, _ in rows.values()), max_bytes)
    return {name: _unpack(name, *row, contents.tensors[f"mask/{name}"]) for name, row in rows.items()}


def holds_masks(index: str) -> bool:
    """Whether an index is one of masks."""
    found = json.loads(index, object_pairs_hook=unique)
    return isinstance(found, dict) and "masks" in found


def _parse(text: str) -> dict[str, tuple[tuple[int, ...], int]]:
    """Read the shape and the number of kept weights of each mask."""
    match json.loads(text, object_pairs_hook=unique):
        case {"tensors": _}:
            raise ValueError("this file holds a model, not masks: read it with pw.load")
        case {"masks": list(rows), **rest} if not rest:
            return unique([_row(row) for row in rows])
    raise ValueError("the index is neither one of masks nor one of a model")


def _row(row: Any) -> tuple[str, tuple[tuple[int, ...], int]]:
    match row:
        case {"name": str(name), "shape": list(shape), "kept": kept, **rest}:
            if all(map(is_count, [*shape, kept])) and not rest:
                check_length(name)
                check_shape(shape)
                return name, (tuple(shape), kept)
    raise nonsense(row)


def _unpack(name: str, shape: tuple[int, ...], kept: int, data: Tensor) -> Tensor:
    try:
        if data.dtype != torch.uint8 or data.dim() != 1:
            raise ValueError(f"positions as {data.dtype} {tuple(data.shape)}, not as bytes")
        return torch.from_numpy(decode(data.numpy(), math.prod(shape), kept)).reshape(shape)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{name!r}: {error}") from error
