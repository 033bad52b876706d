"""Linear layers and ReLUs in a row in a Sequential: one call for all of them, where that is faster still."""

import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.sparse.backends import Way, can_thread, kinds, widths
from prunewald.sparse.recorded import Met
from prunewald.sparse.sparse_layers import Chain, FusedSequential, SparseLinear
from prunewald.sparse.speed_report import LayerSpeed
from prunewald.sparse.stopwatch import clearly_faster
from prunewald.sparse.trial import DENSE, Conditions, Verdict, agree, timed, transposed

_PASSING = (nn.ReLU, nn.Identity, nn.Dropout)
_AS_CHOSEN = "as chosen"
_AT_ONCE = 64  # samples, above which one at a time is not tried
_SLACK = 1.3  # a layer that our kernel makes so much slower than dense is worth more than the call it would save

Verdicts = Mapping[nn.Module, Verdict]


@dataclass(frozen=True)
class Fused:
    """What takes the place of a Sequential and its children, and the lines of the report on its chains."""

    instead: Mapping[nn.Module, nn.Module]
    lines: tuple[LayerSpeed, ...]


def chained(model: nn.Module, is_linear: Callable[[nn.Module], bool]) -> set[nn.Module]:
    """The linear layers that could be in a chain."""
    return {
        child
        for sequential in sequentials(model).values()
        for begin, end in _stretches(list(sequential), is_linear)
        for child in list(sequential)[begin:end]
        if is_linear(child)
    }


def sequentials(model: nn.Module) -> dict[str, nn.Sequential]:
    """The Sequentials whose children nobody else has a say in, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Sequential and not _hooked(module) and "forward" not in vars(module)
    }


def fuse(name: str, sequential: nn.Sequential, met: Met, verdicts: Verdicts, on: Conditions) -> Fused:
    """Try every chain of a Sequential on what the example gives it."""
    children, chains, lines = list(sequential), [], []
    x: Any = met.x

    def in_reach(child: nn.Module) -> bool:
        found = verdicts.get(child)
        return found is not None and found.weight is not None and _bearable(found)

    at = 0
    for begin, end in _stretches(children, in_reach):
        with torch.no_grad():
            for child in children[at:begin]:
                x = child(x)
        at = begin
        if isinstance(x, Tensor) and x.dtype == torch.float32 and x.numel():
            chain, line = _tried(f"{name}.".lstrip("."), [*sequential.named_children()][begin:end], x, verdicts, on)
            lines.append(line)
            if chain is not None:
                chains.append(chain._replace(begin=begin, end=end))
    if not chains:
        return Fused({}, tuple(lines))
    inner = {child for chain in chains for child in children[chain.begin : chain.end]}
    instead = {child: put(child, verdicts, child in inner) for child in children}
    made = FusedSequential(OrderedDict((key, instead[child]) for key, child in sequential.named_children()))
    made.fuse_(tuple(chains))
    return Fused({**instead, sequential: made}, tuple(lines))


def _stretches(children: list[nn.Module], is_linear: Callable[[nn.Module], bool]) -> Iterator[tuple[int, int]]:
    """Where linear layers and what one call can do besides stand in a row, two at the least."""
    at = 0
    while at < len(children):
        end = at
        while end < len(children) and (is_linear(children[end]) or (end > at and _passes(children[end]))):
            end += 1
        if sum(is_linear(one) or type(one) is nn.ReLU for one in children[at:end]) > 1:
            yield at, end
        at = max(end, at + 1)


def _passes(module: nn.Module) -> bool:
    return type(module) in _PASSING and not _hooked(module)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _bearable(found: Verdict) -> bool:
    dense = found.line.dense
    ours = [seconds for name, seconds in found.line.tried.items() if name.startswith("C,")]
    return dense is not None and bool(ours) and min(ours) <= _SLACK * dense


def _tried(
    prefix: str, named: list[tuple[str, nn.Module]], x: Tensor, verdicts: Verdicts, on: Conditions
) -> tuple[Chain | None, LayerSpeed]:
    children = [child for _, child in named]
    found = [verdicts[child] for child in children if child in verdicts]
    weights = [one.weight for one in found if one.weight is not None]
    samples = x.numel() // weights[0].inputs
    dense = nn.Sequential(*children)
    calls: dict[str, nn.Module] = {DENSE: dense, _AS_CHOSEN: nn.Sequential(*(put(one, verdicts, False) for one in children))}
    chains = {}
    with torch.no_grad():
        wanted = dense(x)
        for chain in _chains(found, len(children), samples, on):
            fused = FusedSequential(*(put(one, verdicts, True) for one in children))
            fused.fuse_((chain,))
            if agree(fused(x), wanted):
                calls[str(chain.way)], chains[str(chain.way)] = fused, chain
    times = timed({name: _call(one, x) for name, one in calls.items()})
    medians = {name: statistics.median(seen) for name, seen in times.items()}
    tried = {name: seconds for name, seconds in medians.items() if name in chains}
    best = min(tried, key=tried.__getitem__, default="")
    wins = bool(best) and all(clearly_faster(times, one, best, on.margin) for one in (DENSE, _AS_CHOSEN))
    nnz, total = sum(one.values.numel() for one in weights), sum(one.outputs * one.inputs for one in weights)
    name = f"{prefix}{named[0][0]} to {prefix}{named[-1][0]}"
    reason = f"in one call; {medians[_AS_CHOSEN] * 1e6:.1f} us layer by layer" if wins else "one call is not clearly faster than layer by layer"
    line = LayerSpeed(name, (), 1 - nnz / total, samples, best if wins else "", medians[DENSE], tried.get(best), reason, tried)
    return (chains[best] if wins else None), line


def _chains(found: list[Verdict], length: int, samples: int, on: Conditions) -> Iterator[Chain]:
    """One sample at a time, each layer stored as is best for it, or side by side."""
    if not kinds():
        return
    best = tuple(min(one.kinds, key=one.kinds.__getitem__) if one.kinds else "rows" for one in found)
    for count in sorted({1, on.threads if can_thread() else 1}):
        for width in [*([0] if samples <= _AT_ONCE else []), *widths(samples)]:
            stored = ("rows",) * len(found) if width else best
            yield Chain(0, length, stored, Way("c", "one at a time" if not width else "rows", width, count))


def put(child: nn.Module, verdicts: Verdicts, in_chain: bool) -> nn.Module:
    """What takes the place of a module: a sparse layer where one was chosen, or where a chain needs it."""
    found = verdicts.get(child)
    if found is None or found.weight is None or not (found.way or in_chain):
        return child
    way = found.way or Way("c", min(found.kinds, key=found.kinds.__getitem__) if found.kinds else "rows")
    return SparseLinear(found.weight, way, found.line.samples, transposed(child))


def _call(module: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: module(x)
