"""The four ways in which kernel.c stores a layer, as arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prunewald.sparse.compressed import Compressed

ROWS, COLS, TILES = 0, 1, 2  # as in kernel.c
KINDS = {"rows": ROWS, "cols": COLS, "tiles": TILES}
_SLICE, _TILE = 16, 64  # as in kernel.c

_Ints = npt.NDArray[np.int64]


class Stored(NamedTuple):
    """The arrays of one layer; `places` are bytes in tiles, which `counts` belongs to, and int32 elsewhere."""

    starts: npt.NDArray[np.int32]
    places: npt.NDArray[np.generic]
    counts: npt.NDArray[np.uint8]
    values: npt.NDArray[np.float32]


_NO_COUNTS = np.zeros(1, np.uint8)


def stored(weight: Compressed, kind: str) -> Stored:
    """A weight in one of the ways."""
    starts, places, values = (one.numpy() for one in (weight.starts, weight.places, weight.values))
    if kind == "rows":
        return Stored(starts, places, _NO_COUNTS, values)
    rows = weight.rows().numpy()
    if kind == "cols":
        order = np.argsort(places, kind="stable")
        ends = np.bincount(places, minlength=weight.inputs).cumsum()
        return Stored(_starts(ends), rows[order].astype(np.int32), _NO_COUNTS, values[order])
    return _tiles(weight, rows, places.astype(np.int64), values)


def _tiles(weight: Compressed, rows: _Ints, places: _Ints, values: npt.NDArray[np.float32]) -> Stored:
    """Slices of 16 rows; in each, tile by tile of 64 inputs, as many steps as the fullest row of it has weights.

    A row with fewer is filled up with zeros, which stand at the first input of the tile.
    """
    slices, across = -(-weight.outputs // _SLICE), -(-weight.inputs // _TILE)
    tile = places // _TILE
    cell = rows * across + tile  # one row in one tile; sorted, since rows and places are
    counts = np.bincount(cell, minlength=slices * _SLICE * across)
    rank = np.arange(len(cell)) - (counts.cumsum() - counts)[cell]
    steps = counts.reshape(slices, _SLICE, across).max(axis=1)
    ends = steps.cumsum()
    begins = (ends - steps.ravel()).reshape(slices, across)
    at = (begins[rows // _SLICE, tile] + rank) * _SLICE + rows % _SLICE
    total = int(ends[-1]) if len(ends) else 0
    into_places, into_values = np.zeros(total * _SLICE, np.uint8), np.zeros(total * _SLICE, np.float32)
    into_places[at], into_values[at] = places % _TILE, values
    return Stored(
        _starts(ends.reshape(slices, across)[:, -1]), into_places, steps.astype(np.uint8).ravel(), into_values
    )


def _starts(ends: _Ints) -> npt.NDArray[np.int32]:
    return np.concatenate([[0], ends]).astype(np.int32)
