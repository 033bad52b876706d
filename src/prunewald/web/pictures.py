"""Pictures of a large layer: its mask on a grid, and the first layer as images of what it looks at."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prunewald.web import encoding

_SIDE = 72  # cells of a mask's picture at most, in each direction
_ALL_CELLS = 400_000  # of all masks of a page
_TILES = 32  # images of the first layer


def mask(keep: Tensor, planes: int) -> dict[str, Any]:
    """The share that is kept in each cell of a grid over the matrix, as bytes; coarser in a page of many planes."""
    most = min(_SIDE, max(8, math.isqrt(_ALL_CELLS // planes)))
    matrix = (keep.reshape(1, -1) if keep.dim() < 2 else keep.flatten(1)).float()
    rows, columns = matrix.shape
    size = min(rows, most), min(columns, most)
    shares = F.adaptive_avg_pool2d(matrix[None, None], size)
    kept = encoding.array((255 * shares).round().to(torch.uint8))
    return {"rows": size[0], "columns": size[1], "of": [rows, columns], "kept": kept}


def image(weight: Tensor, keep: Tensor) -> dict[str, Any] | None:
    """The first outputs of a layer as images, where its weights lie on a grid: of a convolution, or of a square input.

    Weights are bytes over the largest |w|; None where there is no such grid.
    """
    side = grid(tuple(weight.shape))
    if side is None:
        return None
    tiles = weight.reshape(-1, *side)[:_TILES].float()
    top = float(tiles.abs().max()) or 1.0
    return {
        "height": side[0],
        "width": side[1],
        "tiles": len(tiles),
        "of": weight.numel() // math.prod(side),
        "values": encoding.array((127 * tiles / top).round().to(torch.int8)),
        "kept": encoding.array(keep.reshape(-1, *side)[: len(tiles)]),
        "share": encoding.array((255 * keep.reshape(-1, *side).float().mean(0)).round().to(torch.uint8)),
    }


def grid(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of what one output of a layer looks at: a kernel, or a square of inputs."""
    if len(shape) == 4:
        return (shape[2], shape[3]) if shape[2] * shape[3] > 1 else None
    side = math.isqrt(shape[1]) if len(shape) == 2 else 0
    return (side, side) if side > 2 and side * side == shape[1] else None
