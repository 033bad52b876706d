"""The running variance of many tensors: Welford's update on weights shifted by a snapshot, in float32.

Weights are near 1e-2 and move by 1e-6: the shift makes the differences exact, Welford keeps them so over random walks
and outliers. The weights are taken in by lots small enough that every temporary stays in the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from prunewald.weights import accumulator

# On a CPU a lot must fit the cache; a GPU wants few, large launches.
_CPU_LOT, _GPU_LOT = 1 << 15, 1 << 26

Block = dict[str, Any]  # count, and by parameter name: mean (of the shifted weights), m2, moved


def new_block(weights: Mapping[str, Tensor]) -> Block:
    """An empty accumulator for these weights."""
    return {
        "count": 0,
        "mean": {name: _zeros(w, accumulator(w)) for name, w in weights.items()},
        "m2": {name: _zeros(w, accumulator(w)) for name, w in weights.items()},
        "moved": {name: _zeros(w, torch.bool) for name, w in weights.items()},
    }


def _zeros(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(weight, dtype=dtype, requires_grad=False)


def shift_to_(shift: dict[str, Tensor], blocks: Sequence[Block], weights: Mapping[str, Tensor]) -> None:
    """Measure from these weights on; the means of earlier blocks are moved along."""
    for name, weight in weights.items():
        new = weight.detach().to(accumulator(weight), copy=True)
        for block in blocks:
            block["mean"][name] = block["mean"][name].to(new.device) + (shift[name].to(new.device) - new)
        shift[name] = new


def collect_(
    shift: dict[str, Tensor],
    block: Block,
    weights: Mapping[str, Tensor],
    grads: Mapping[str, Tensor | None],
    took: Tensor | None,
    compiled: bool,
) -> None:
    """Take one snapshot into a block; `took` (0 or 1, on the device) tells whether it counts, None that it does."""
    block["count"] = block["count"] + (1 if took is None else took)
    for device, names in _by_device(weights).items():
        columns = [[weights[name].detach() for name in names]]
        for kept in (shift, block["mean"], block["m2"], block["moved"]):
            for name in names:
                kept[name] = kept[name].to(device)
            columns.append([kept[name] for name in names])
        columns.append([_dense(grads[name], weights[name]) for name in names])
        if took is None and not compiled:
            for lot in _lots(columns, _CPU_LOT if device.type == "cpu" else _GPU_LOT):
                _welford_(block["count"], *lot)
        else:
            gate = torch.ones((), device=device) if took is None else took.to(device, torch.float32)
            count = torch.as_tensor(block["count"], device=device, dtype=torch.float32)
            update_ = _compiled() if compiled else _gated_welford_
            update_(gate, gate / count.clamp(min=1), *columns)


def _by_device(weights: Mapping[str, Tensor]) -> dict[torch.device, list[str]]:
    devices: dict[torch.device, list[str]] = {}
    for name, weight in weights.items():
        devices.setdefault(weight.device, []).append(name)
    return devices


def _dense(grad: Tensor | None, weight: Tensor) -> Tensor:
    if grad is None:
        return weight.new_zeros(()).expand(weight.shape)
    return grad.to_dense() if grad.is_sparse else grad.detach()


def _lots(columns: Sequence[Sequence[Tensor]], size: int) -> Iterator[list[list[Tensor]]]:
    """Cut the tensors of all columns alike, along their first dimension, and hand them out in lots of about `size`."""
    lot: list[tuple[Tensor, ...]] = []
    filled = 0
    for row in zip(*columns, strict=True):
        rows = max(1, size * len(row[0]) // max(row[0].numel(), 1)) if row[0].dim() else 1
        for cut in zip(*(t.split(rows) if t.dim() else (t,) for t in row), strict=True):
            if lot and filled + cut[0].numel() > size:
                yield [list(column) for column in zip(*lot, strict=True)]
                lot, filled = [], 0
            lot.append(cut)
            filled += cut[0].numel()
    if lot:
        yield [list(column) for column in zip(*lot, strict=True)]


def _welford_(
    count: int,
    weights: list[Tensor],
    shift: list[Tensor],
    mean: list[Tensor],
    m2: list[Tensor],
    moved: list[Tensor],
    grads: list[Tensor],
) -> None:
    delta = torch._foreach_sub(weights, shift)
    torch._foreach_sub_(delta, mean)
    torch._foreach_add_(mean, delta, alpha=1 / count)
    torch._foreach_addcmul_(m2, delta, delta, value=1 - 1 / count)
    for flag, grad in zip(moved, grads, strict=True):
        flag.logical_or_(grad != 0)


def _gated_welford_(
    gate: Tensor,
    rate: Tensor,
    weights: list[Tensor],
    shift: list[Tensor],
    mean: list[Tensor],
    m2: list[Tensor],
    moved: list[Tensor],
    grads: list[Tensor],
) -> None:
    """The same with numbers that are on the device: nothing waits, and nothing is compiled anew at every step."""
    for w, s, mu, square, flag, grad in zip(weights, shift, mean, m2, moved, grads, strict=True):
        delta = w - s - mu
        mu.add_(delta * rate)
        square.add_(delta * delta * (gate - rate))
        flag.logical_or_((grad != 0) & (gate != 0))


@cache
def _compiled() -> Any:
    return torch.compile(_gated_welford_)


def merged(blocks: Sequence[Block], name: str) -> tuple[int, Tensor, Tensor]:
    """Count, sum of squared deviations and `moved` of one parameter over all blocks (Chan's formula)."""
    kept = [block for block in blocks if int(block["count"])]
    device = kept[-1]["mean"][name].device  # the model may have been moved since the older blocks were filled

    def read(block: Block) -> tuple[int, Tensor, Tensor, Tensor]:
        mean, m2, moved = (block[key][name].to(device) for key in ("mean", "m2", "moved"))
        return int(block["count"]), mean, m2, moved

    total, mean, m2, moved = read(kept[0])
    for count, *block in map(read, kept[1:]):
        delta = block[0] - mean
        m2 = m2 + block[1] + delta.square() * (total * count / (total + count))
        mean = mean + delta * (count / (total + count))
        moved = moved | block[2]
        total += count
    return total, m2, moved
