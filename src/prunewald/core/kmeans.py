"""k-means in one dimension: the few shared values that stand for many. Han, Mao & Dally (2016)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prunewald.util.arguments import whole

MAX_SIZE = 256
_MAX_ROUNDS = 1000

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


def kmeans_1d(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Find at most `size` (2 to 256) shared values, and which of them stands for each value.

    Lloyd's algorithm from centres spread evenly between the smallest and the largest value (Han's linear
    initialisation), until nothing changes; a centre that stands for nothing then goes to where the error is largest.
    The same values give the same result, bit for bit, on every machine.

    Gives the codebook, rising, in the dtype of the values, each entry in use; and the codes, uint8, in the shape of
    the values: `codebook[codes.long()]` is the quantised tensor. Where the values are few enough already they are the
    codebook, and nothing is lost (but the sign of a zero).
    """
    whole("size", size, 2, MAX_SIZE)
    if not values.is_floating_point():
        raise TypeError(f"k-means takes floating-point values, not {values.dtype}")
    flat = values.detach().cpu().reshape(-1)
    if not torch.isfinite(flat).all():
        raise ValueError("k-means takes finite values; some are infinite or NaN")
    numbers = (flat if flat.dtype == torch.float64 else flat.float()).numpy()
    ordered = np.sort(numbers)
    starts = _few(ordered, size)
    if starts.size > size:
        starts = _lloyd(ordered.astype(np.float64), size)
        sums = _prefix(ordered)
        book = np.diff(sums[np.append(starts, ordered.size)]) / np.diff(starts, append=ordered.size)
    else:
        book = ordered[starts].astype(np.float64)
    codes = np.zeros(numbers.shape, np.uint8)
    for bound in ordered[starts[1:]]:
        codes += numbers >= bound
    return _in_dtype(book, torch.from_numpy(codes).view(values.shape), values)


def _few(ordered: NDArray[Any], size: int) -> Places:
    """Where each distinct value starts in the sorted values; only the first where there are more than `size`."""
    new = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.concatenate((np.zeros(min(1, ordered.size), np.intp), new[: size + 1]))


def _lloyd(ordered: Floats, size: int) -> Places:
    """Where, in the sorted values, each cluster starts."""
    sums, squares = _prefix(ordered), _prefix(ordered**2)
    centres = np.linspace(ordered[0], ordered[-1], size)
    before = np.zeros(0, np.intp)
    edges = before
    for _ in range(_MAX_ROUNDS):
        inner = np.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2, side="left")
        edges = np.concatenate(([0], inner, [ordered.size]))
        counts = np.diff(edges)
        means = np.diff(sums[edges]) / np.maximum(counts, 1)
        if np.array_equal(edges, before):
            if counts.all():
                break
            error = np.diff(squares[edges]) - counts * means**2
            centres = _moved(ordered, means, edges, error)
            before = np.zeros(0, np.intp)
        else:
            before = edges
            centres = np.where(counts > 0, means, centres)  # an empty cluster stays where it is, at first
    return np.asarray(edges[:-1][np.diff(edges) > 0])


def _moved(ordered: Floats, means: Floats, edges: Places, error: Floats) -> Floats:
    """Split the worst clusters at their means, as many as there are centres of no use."""
    full = np.flatnonzero(np.diff(edges))
    spare = means.size - full.size
    worst = full[np.argsort(-error[full], kind="stable")[:spare]]
    low, high = ordered[edges[worst]], ordered[edges[worst + 1] - 1]
    intact = means[np.setdiff1d(full, worst)]
    halves = np.concatenate(((low + means[worst]) / 2, (high + means[worst]) / 2))
    unused = np.full(means.size - intact.size - halves.size, np.inf)  # where there are more of them than clusters
    return np.sort(np.concatenate((intact, halves, unused)))


def _prefix(ordered: NDArray[Any]) -> Floats:
    """Sums of the first 0, 1, 2, ... values, added one by one: the order, and so the rounding, is fixed."""
    return np.concatenate(([0.0], np.cumsum(ordered, dtype=np.float64)))


def _in_dtype(book: Floats, codes: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Round the codebook to the values' dtype; centres that round to the same value become one."""
    rounded = torch.from_numpy(book).to(values.dtype)
    distinct, place = torch.unique(rounded.double(), return_inverse=True)
    if len(distinct) < len(rounded):
        codes = place.to(torch.uint8)[codes.long()]
    return distinct.to(values.dtype).to(values.device), codes.to(values.device)
