"""The running variance of many tensors: Welford's update on weights shifted by a snapshot, in float32.

Weights are near 1e-2 and move by 1e-6: the shift makes the differences exact, Welford keeps them so over random walks
and outliers. On a CPU the weights are taken in by pieces small enough that the one temporary stays in the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from prunewald.core.weights import Weight
from prunewald.util.tensors import accumulator, dense

_LOT = 1 << 26  # elements taken in together, on a GPU
_PIECE = 1 << 18  # and on a CPU

Accumulator: TypeAlias = dict[str, Any]  # count, and by parameter name: mean (of the shifted weights), m2, moved
Column: TypeAlias = list[Tensor]  # one tensor a parameter


def new_block(weights: Mapping[str, Tensor], single: bool = False, marked: bool = False) -> Accumulator:
    """An empty accumulator for these weights; one for a `single` snapshot needs no deviations.

    It is `marked` with where a gradient arrived only where no Pruner watches that: for stacked models.
    """
    return {
        "count": 0,
        "mean": {name: _zeros(w, accumulator(w)) for name, w in weights.items()},
        "m2": {} if single else {name: _zeros(w, accumulator(w)) for name, w in weights.items()},
        "moved": {name: _zeros(w, torch.bool) for name, w in weights.items()} if marked else {},
    }


def _zeros(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(weight, dtype=dtype, requires_grad=False)


def shift_to_(shift: dict[str, Tensor], blocks: Sequence[Accumulator], weights: Mapping[str, Tensor]) -> None:
    """Measure from these weights on; the means of earlier blocks are moved along."""
    for name, weight in weights.items():
        new = weight.detach().to(accumulator(weight), copy=True)
        for block in blocks:
            block["mean"][name] = block["mean"][name].to(new.device) + (shift[name].to(new.device) - new)
        shift[name] = new


def collect_(
    shift: dict[str, Tensor],
    block: Accumulator,
    weights: Mapping[str, Tensor],
    grads: Mapping[str, Tensor | None],
    took: Tensor | None,
    compiled: bool,
) -> None:
    """Take one snapshot into a block; `took` (0 or 1, on the device) tells whether it counts, None that it does."""
    block["count"] = block["count"] + (1 if took is None else took)
    for device, names in _lots(weights):
        tables = (shift, block["mean"], block["m2"], block["moved"])
        for kept in tables:
            kept.update({name: kept[name].to(device) for name in names if name in kept})
        columns = [[table[name].detach() for name in names] for table in (weights, *tables[:3]) if table]
        if not block["m2"]:
            for weight, first, mean in zip(*columns, strict=True):
                torch.sub(weight, first, out=mean)
        elif took is None and not compiled:
            (_welford_in_cache_ if device.type == "cpu" else _welford_)(block["count"], *columns)
        else:
            gate = torch.ones((), device=device) if took is None else took.to(device, torch.float32)
            count = torch.as_tensor(block["count"], device=device, dtype=torch.float32)
            (_compiled() if compiled else _gated_welford_)(gate, gate / count.clamp(min=1), *columns)
        for name in names if block["moved"] else ():
            _mark_(block["moved"][name], grads[name], took)


def _lots(weights: Mapping[str, Tensor]) -> Iterator[tuple[torch.device, list[str]]]:
    """The names by device, in lots that bound the temporaries on a GPU."""
    names: list[str] = []
    size = 0
    for name, weight in weights.items():
        if names and (weight.device != weights[names[0]].device or size + weight.numel() > _LOT):
            yield weights[names[0]].device, names
            names, size = [], 0
        names.append(name)
        size += weight.numel()
    if names:
        yield weights[names[0]].device, names


def _welford_(count: int, weights: Column, shift: Column, mean: Column, m2: Column) -> None:
    """Welford's update of all tensors together: a GPU wants few, large launches."""
    delta = torch._foreach_sub(weights, shift)
    torch._foreach_sub_(delta, mean)
    torch._foreach_add_(mean, delta, alpha=1 / count)
    torch._foreach_addcmul_(m2, delta, delta, value=1 - 1 / count)


def _welford_in_cache_(count: int, weights: Column, shift: Column, mean: Column, m2: Column) -> None:
    """Welford's update by pieces whose one temporary stays in the cache of a CPU."""
    for row in zip(weights, shift, mean, m2, strict=True):
        scratch: Tensor | None = None
        for w, s, mu, square in _cut(row):
            if scratch is None or scratch.shape != w.shape:
                scratch = torch.empty_like(w, dtype=mu.dtype)
            torch.sub(w, s, out=scratch).sub_(mu)
            mu.add_(scratch, alpha=1 / count)
            square.addcmul_(scratch, scratch, value=1 - 1 / count)


def _cut(row: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors of one shape alike, along their first dimension."""
    size = row[0].numel()
    if size <= _PIECE:
        return iter([tuple(row)])
    rows = max(1, _PIECE * len(row[0]) // size)
    return zip(*(tensor.split(rows) for tensor in row), strict=True)


def _gated_welford_(gate: Tensor, rate: Tensor, weights: Column, shift: Column, mean: Column, m2: Column) -> None:
    """Welford's update with counts that stay on the device: nothing waits or is compiled anew at each step."""
    for w, s, mu, square in zip(weights, shift, mean, m2, strict=True):
        delta = w - s - mu
        mu.add_(delta * rate)
        square.add_(delta * delta * (gate - rate))


@cache
def _compiled() -> Any:
    return torch.compile(_gated_welford_)


def _mark_(moved: Tensor, grad: Tensor | None, took: Tensor | None) -> None:
    """Remember where a gradient was not zero."""
    if grad is None:
        return
    some = dense(grad).bool()  # twice as fast as a comparison with 0
    moved.logical_or_(some if took is None else some & took.to(some.device).bool())


def merged(blocks: Sequence[Accumulator], name: str) -> tuple[int, Tensor]:
    """Count and sum of squared deviations of one parameter over all blocks (Chan's formula)."""
    kept = [block for block in blocks if int(block["count"])]
    device = kept[-1]["mean"][name].device  # the model may have been moved since the older blocks were filled

    def read(block: Accumulator) -> tuple[int, Tensor, Tensor]:
        mean = block["mean"][name].to(device)
        m2 = block["m2"][name].to(device) if block["m2"] else torch.zeros_like(mean)
        return int(block["count"]), mean, m2

    total, mean, m2 = read(kept[0])
    for count, own, own_m2 in map(read, kept[1:]):
        delta = own - mean
        m2 = m2 + own_m2 + delta.square() * (total * count / (total + count))
        mean = mean + delta * (count / (total + count))
        total += count
    return total, m2


def unmoved(blocks: Sequence[Accumulator], weight: Weight) -> Tensor | None:
    """Where no gradient arrived in all of these blocks; None where they are not marked."""
    if weight.dead is not None or not all(block["moved"] for block in blocks):
        return weight.dead
    device = weight.param.device
    return ~torch.stack([block["moved"][weight.name].to(device) for block in blocks]).any(0)
