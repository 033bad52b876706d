"""Linear layers and ReLUs in a row in a Sequential: one call for all of them, where that is faster still."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.sparse.backends import MANY, Way, threads, widths
from prunewald.sparse.recorded import Met
from prunewald.sparse.sparse_layers import Chain, FusedSequential, SparseLinear
from prunewald.sparse.speed_report import LayerSpeed
from prunewald.sparse.stopwatch import Times, clearly_faster, typical
from prunewald.sparse.trial import DENSE, Conditions, Verdict, agree, calling, fastest, timed, transposed

_PASSING = (nn.ReLU, nn.Identity, nn.Dropout)
_AS_CHOSEN = "as chosen"
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
            chain, line = _tried(f"{name}.".lstrip("."), [*sequential._modules.items()][begin:end], x, verdicts, on)
            lines.append(line)
            if chain is not None:
                chains.append(chain._replace(begin=begin, end=end))
    if not chains:
        return Fused({}, tuple(lines))
    inner = {child for chain in chains for child in children[chain.begin : chain.end]}
    instead = {child: put(child, verdicts, child in inner) for child in children}
    made = FusedSequential(
        OrderedDict((key, instead[child]) for key, child in zip(sequential._modules, children, strict=True))
    )
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
    """A chain, if it is clearly faster than dense and than its layers one by one, and its line in the report."""
    children = [child for _, child in named]
    found = [verdicts[child] for child in children if child in verdicts]
    weights = [one.weight for one in found if one.weight is not None]
    samples = x.numel() // weights[0].inputs
    chains = {str(chain.way): chain for chain in _chains(found, len(children), samples, on)}
    times = _measured(children, chains, x, verdicts)
    tried = {name: typical(seen) for name, seen in times.items()}
    dense, one_by_one = tried.pop(DENSE), tried.pop(_AS_CHOSEN)
    best = fastest(times, {name: chain.way for name, chain in chains.items()}, on.margin)
    wins = bool(best) and all(clearly_faster(times, one, best, on.margin) for one in (DENSE, _AS_CHOSEN))
    reason = f"{'in one call' if wins else 'one call is not clearly faster'}; {one_by_one * 1e6:,.1f} us layer by layer"
    zeros = 1 - sum(one.values.numel() for one in weights) / sum(one.outputs * one.inputs for one in weights)
    name, way = f"{prefix}{named[0][0]} to {prefix}{named[-1][0]}", best if wins else ""
    return chains.get(way), LayerSpeed(name, (), zeros, samples, way, dense, tried.get(best), reason, tried)


def _measured(children: list[nn.Module], chains: Mapping[str, Chain], x: Tensor, verdicts: Verdicts) -> Times:
    calls: dict[str, nn.Module] = {
        DENSE: nn.Sequential(*children),
        _AS_CHOSEN: nn.Sequential(*(put(one, verdicts, False) for one in children)),
    }
    with torch.no_grad():
        wanted = calls[DENSE](x)
        for name, chain in chains.items():
            fused = FusedSequential(*(put(one, verdicts, True) for one in children))
            fused.fuse_((chain,))
            if agree(fused(x), wanted):
                calls[name] = fused
    return timed({name: calling(one, x) for name, one in calls.items()})


def _chains(found: list[Verdict], length: int, samples: int, on: Conditions) -> Iterator[Chain]:
    """One sample at a time, each layer stored as is best for it, or side by side."""
    for count in threads(on.threads):
        if samples <= MANY:
            best = tuple(_best_kind(one) for one in found)
            yield Chain(0, length, best, Way("c", "one at a time", 0, count))
        for width in widths(samples):
            yield Chain(0, length, ("rows",) * len(found), Way("c", "rows", width, count))


def _best_kind(found: Verdict) -> str:
    return min(found.kinds, key=found.kinds.__getitem__, default="rows")


def put(child: nn.Module, verdicts: Verdicts, in_chain: bool) -> nn.Module:
    """What takes the place of a module: a sparse layer where one was chosen, or where a chain needs it."""
    found = verdicts.get(child)
    if found is None or found.weight is None or not (found.way or in_chain):
        return child
    return SparseLinear(found.weight, found.way or Way("c", _best_kind(found)), found.line.samples, transposed(child))
