"""One layer, every way to run it, side by side: the fastest is chosen if it is clearly faster than dense."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.sparse.backends import Way, ways
from prunewald.sparse.compressed import Compressed, countable
from prunewald.sparse.recorded import Met
from prunewald.sparse.sparse_layers import SparseLinear
from prunewald.sparse.speed_report import LayerSpeed
from prunewald.sparse.stopwatch import Times, clearly_faster, race, typical

DENSE = "dense"
_WORTH = 0.3  # share of zeros, below which no way was ever faster than dense


@dataclass(frozen=True)
class Conditions:
    """What all layers are measured under."""

    backends: tuple[str, ...]
    threads: int
    margin: float


@dataclass(frozen=True)
class Verdict:
    """What was found of one layer: its line in the report, its weight, how it should run, and the best of our kernel.

    `way` is None where it stays dense; `kinds` are the times of our kernel, by how it stores the weight.
    """

    line: LayerSpeed
    weight: Compressed | None = None
    way: Way | None = None
    kinds: Mapping[str, float] = field(default_factory=dict)


def transposed(module: nn.Module) -> bool:
    """Whether a module is Hugging Face's Conv1D, a linear layer whose weight is (inputs, outputs)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def linear(module: nn.Module) -> bool:
    """Whether a module computes what a linear layer does; a class of its own may compute anything."""
    return type(module).forward is nn.Linear.forward or transposed(module)


def refused(module: Any) -> str:
    """Why a linear layer cannot be replaced; empty if it can."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, name) for name in hooks):
        return "has hooks, which may change its weight or its outputs (torch.nn.utils.prune.remove takes away its own)"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "its weight is made from others (torch.nn.utils.parametrize.remove_parametrizations keeps it)"
    if "forward" in vars(module):
        return "has a forward of its own"
    if type(module.weight) is not nn.Parameter or module.weight.layout != torch.strided:
        return f"its weight is a {type(module.weight).__name__} of its own kind"
    kinds = {one.dtype for one in module.parameters(recurse=False)}
    if kinds != {torch.float32}:
        return f"{', '.join(sorted(str(kind).removeprefix('torch.') for kind in kinds))}: only float32 runs sparse"
    if not module.weight.numel() or not countable(module.weight):
        return "has no weights" if not module.weight.numel() else "has more weights than int32 can count"
    return ""


def compressed(module: Any) -> Compressed:
    """The weight of a linear layer without its zeros."""
    weight = module.weight.detach()
    return Compressed.of(weight.t() if transposed(module) else weight, module.bias)


def judge(name: str, module: Any, met: Met | None, on: Conditions, chained: bool) -> Verdict:
    """Try all ways on what the example gave the layer. One in a chain is measured for it, however few its zeros."""
    shape, zeros = tuple(module.weight.shape), 1 - module.weight.count_nonzero().item() / max(1, module.weight.numel())

    def dense(reason: str, samples: int = 0) -> Verdict:
        return Verdict(LayerSpeed(name, shape, zeros, samples, "", None, None, reason))

    if reason := refused(module):
        return dense(reason)
    if met is None:
        return dense("the example does not call it, or its weight is read by the module around it")
    weight = compressed(module)
    samples = met.x.numel() // weight.inputs
    if met.x.dtype != torch.float32 or not samples:
        return dense("the example gives it no float32 input", samples)
    if zeros < _WORTH and not chained:
        return dense(f"fewer than {_WORTH:.0%} zeros: nothing was tried", samples)
    found = {str(way): way for way in ways(on.backends, samples, on.threads)}
    times = _measured(module, weight, met, found)
    return _verdict(dense("").line, weight, samples, times, found, on, met.calls)


def _measured(module: Any, weight: Compressed, met: Met, found: Mapping[str, Way]) -> Times:
    layers: dict[str, Any] = {DENSE: module}
    samples = met.x.numel() // weight.inputs
    with torch.no_grad():
        wanted = module(met.x)
        for name, way in found.items():
            layer = SparseLinear(weight, way, samples, transposed(module))
            if agree(layer(met.x), wanted):
                layers[name] = layer
    return timed({name: calling(layer, met.x) for name, layer in layers.items()})


def timed(calls: Mapping[str, Callable[[], object]]) -> Times:
    """A race, as models run for inference."""
    with torch.inference_mode():
        return race(calls, DENSE)


def fastest(times: Times, found: Mapping[str, Way], margin: float) -> str:
    """The fastest of some ways; more threads than one only where that is clearly faster, since others may want them."""
    tried = {name: typical(times[name]) for name in found if name in times}
    alone, many = (
        min((name for name in tried if (found[name].threads > 1) is more), key=tried.__getitem__, default="")
        for more in (False, True)
    )
    if not alone or (many and clearly_faster(times, alone, many, margin)):
        return many
    return alone


def calling(layer: Callable[[Tensor], Any], x: Tensor) -> Callable[[], object]:
    """A call of a layer, for a race."""
    return lambda: layer(x)


def agree(got: Tensor, wanted: Tensor) -> bool:
    """Whether two results are the same but for the order of additions; never where there is NaN or inf."""
    if not wanted.isfinite().all():
        return False
    scale = wanted.abs().max().item() if wanted.numel() else 0.0
    return bool(torch.allclose(got, wanted, rtol=1e-3, atol=1e-4 * scale))


def _verdict(
    line: LayerSpeed, weight: Compressed, samples: int, times: Times, found: Mapping[str, Way], on: Conditions,
    calls: int,
) -> Verdict:  # fmt: skip
    tried = {name: typical(seen) for name, seen in times.items()}
    dense, best = tried.pop(DENSE), fastest(times, found, on.margin)
    wins = bool(best) and line.zeros >= _WORTH and clearly_faster(times, DENSE, best, on.margin)
    if not best:
        reason = "no backend gave the dense layer's results here"
    elif not wins:
        reason = f"not clearly faster: the best, {best}, takes {tried[best] / dense:.2f} of dense"
    else:
        reason = f"the fastest of {len(tried)} ways"
    if calls > 1:
        reason += f"; called {calls} times, measured on the first"
    sparse = tried.get(best)
    made = replace(line, samples=samples, way=best if wins else "", dense=dense, sparse=sparse, reason=reason)
    return Verdict(replace(made, tried=tried), weight, found[best] if wins else None, _ours(tried, found))


def _ours(tried: Mapping[str, float], found: Mapping[str, Way]) -> dict[str, float]:
    """The shortest time of our kernel with one sample at a time, by how it stores the weight."""
    best: dict[str, float] = {}
    for name, seconds in tried.items():
        if found[name].backend == "c" and not found[name].width:
            best[found[name].kind] = min(seconds, best.get(found[name].kind, seconds))
    return best
