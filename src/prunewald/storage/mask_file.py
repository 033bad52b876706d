"""A file of masks alone: one bit for each weight, in the same container as a packed model."""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from prunewald.files import FilePath
from prunewald.storage import container
from prunewald.storage import masks as bitmask
from prunewald.storage.container import blaming
from prunewald.storage.index import is_count, unique
from prunewald.storage.state import unfit


def save(masks: Mapping[str, Tensor], path: FilePath) -> None:
    """Save masks, such as `pruner.masks`: one bit for each weight, no pickle, whole or not at all."""
    check_bool(masks)
    rows, parts = [], {}
    for name, mask in masks.items():
        alive = mask.detach().cpu().contiguous().view(torch.uint8) != 0  # a view of something else has other bytes
        parts[f"mask/{name}"] = bitmask.pack(alive)
        rows.append({"name": name, "shape": list(mask.shape), "kept": int(alive.sum())})
    container.write(path, json.dumps({"masks": rows}, ensure_ascii=False, separators=(",", ":")), parts)


def load(path: FilePath) -> dict[str, Tensor]:
    """Load what `save` wrote, on the CPU; a PackedFileError if the file is damaged, or holds anything else."""
    with blaming(path):
        text, parts = container.read(path)
        rows = _parse(text)
        if odd := sorted({f"mask/{name}" for name in rows} ^ parts.keys()):
            raise ValueError(f"index and stored tensors disagree about {odd[0]!r}")
        return {name: _join(name, *row, parts[f"mask/{name}"]) for name, row in rows.items()}


def check_bool(masks: Mapping[str, Tensor], what: str = "the masks") -> None:
    """Refuse what is not a dict of bool tensors."""
    if not isinstance(masks, Mapping):
        raise TypeError(
            f"{what} are a {type(masks).__name__}: give a dict of bool tensors by parameter name, such as pruner.masks"
        )
    if not masks:
        raise ValueError(f"{what} are empty: give a bool tensor for each parameter, such as pruner.masks")
    for name, mask in masks.items():
        if not isinstance(name, str):
            raise TypeError(f"{what} have the key {name!r}: give the names of parameters")
        if reason := unfit(mask):
            raise ValueError(f"{what}: that of {name!r} is {reason}: give a bool tensor, True where a weight is alive")
        if mask.dtype != torch.bool:
            raise ValueError(
                f"{what}: that of {name!r} is {mask.dtype}: give a bool tensor, such as mask != 0, True where a weight "
                "is alive"
            )


def _parse(text: str) -> dict[str, tuple[tuple[int, ...], int]]:
    index = json.loads(text, object_pairs_hook=unique)
    if isinstance(index, list):
        raise ValueError("this file holds a model, not masks: read it with pw.load")
    match index:
        case {"masks": list(rows), **rest} if not rest:
            return unique([_row(row) for row in rows])
    raise ValueError("the index is neither one of masks nor one of a model")


def _row(row: Any) -> tuple[str, tuple[tuple[int, ...], int]]:
    match row:
        case {"name": str(name), "shape": list(shape), "kept": kept, **rest}:
            if all(map(is_count, [*shape, kept])) and not rest:
                return name, (tuple(shape), kept)
    raise ValueError(f"the index has an entry that makes no sense: {str(row)[:200]}")


def _join(name: str, shape: tuple[int, ...], kept: int, packed: Tensor) -> Tensor:
    try:
        # Checked against its bytes first, so what a lying shape can allocate is bounded by the file.
        mask = bitmask.unpack(packed, math.prod(shape)).reshape(shape)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{name!r}: {error}") from error
    if (places := int(mask.sum())) != kept:
        raise ValueError(f"{name!r}: a mask of {places} places, where the index says {kept}")
    return mask
