"""A model and an example in, a copy whose linear layers run by torch's int8 kernel, where that is faster, out."""

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.export.comparing import relative
from prunewald.export.example_inputs import Example, Inputs, as_example
from prunewald.export.flattening import named_tensors
from prunewald.pruning.noticing import ModelHook
from prunewald.quantisation.int8_codes import Coded, Codes, Source
from prunewald.quantisation.int8_layers import Int8Linear
from prunewald.quantisation.int8_report import Int8Layer, Int8Report
from prunewald.sparse.recorded import Met, record
from prunewald.sparse.stopwatch import Times, clearly_faster, race
from prunewald.util.arguments import real

_FLOAT, _INT8 = "float", "int8"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class _Terms:
    """Under which a layer may run as int8."""

    margin: float
    tolerance: float


def run_int8(source: Source, example_inputs: Inputs, *, margin: float = 0.05, tolerance: float = 0.05) -> nn.Module:
    """A copy of a model for inference on this machine's CPU, in which linear layers run as int8 where that pays.

    `source` is a Pruner that holds `LinearValues`, or these: the codes that they learned run, unchanged. Of any other
    Pruner or model, weights that are whole numbers of a scale, as in a file of such a model, run so too; all others are
    rounded, each row by itself, and the report says at what error.

    Layers are measured on `example_inputs` (a tensor, a tuple of what the model is called with, or a dict by keyword)
    at torch's present number of threads, and replaced only where that is faster by more than `margin` and outputs are
    within `tolerance` of the same weights' in float, of the largest; in the end so is the whole. Inputs of layers are
    rounded to int8 as they come, each row by its largest.

    `print(fast.report)` shows what was chosen, and why. The model is untouched.
    """
    terms = _Terms(real("margin", margin, least=0), real("tolerance", tolerance, above=0))
    codes = Codes(source, "run_int8()")
    with torch.inference_mode(False), torch.no_grad():
        example = as_example(example_inputs, codes.model)
        _check(codes.model)
        dense = _copied(codes.model)
        made, lines = _replaced(copy.deepcopy(dense), codes, example, terms)
        report = _judged(dense, made, lines, example, terms)
    found = made if report.replaced else dense
    vars(found)["report"] = report
    return found


def _check(model: nn.Module) -> None:
    devices = {str(param.device) for param in model.parameters() if param.device.type != "cpu"}
    if devices:
        raise ValueError(f"the model is on {', '.join(sorted(devices))}, and run_int8() is for a CPU: model.cpu()")
    layers: list[Any] = [module for module in model.modules() if _linear(module)]
    if not layers:
        raise ValueError(
            "the model has no nn.Linear, and torch has int8 kernels for these alone: quantisation.to_onnx() runs "
            "convolutions as int8 too"
        )
    kinds = {layer.weight.dtype for layer in layers}
    if torch.float32 not in kinds:
        named = ", ".join(sorted(str(kind) for kind in kinds))
        raise ValueError(f"the linear layers of the model are {named}, and only float32 runs as int8: model.float()")


def _linear(module: nn.Module) -> bool:
    """Whether a module computes what a linear layer does; a class of its own may compute anything."""
    return type(module).forward is nn.Linear.forward and "forward" not in vars(module)


def _copied(model: nn.Module) -> nn.Module:
    """A copy for inference, without what a Pruner hooks to modules, which does nothing in copies."""
    made = copy.deepcopy(model).eval().requires_grad_(False)
    for old, new in zip(model.modules(), made.modules(), strict=True):
        for name in _HOOKS:
            for key, hook in getattr(old, name).items():
                if isinstance(hook, ModelHook):
                    del getattr(new, name)[key]
    return made


def _replaced(model: nn.Module, codes: Codes, example: Example, terms: _Terms) -> tuple[nn.Module, list[Int8Layer]]:
    """A copy, with the layers in it replaced that are faster as int8, and the lines of the report on all of them."""
    layers: dict[str, Any] = {name: module for name, module in model.named_modules() if _linear(module)}
    met = record(lambda: model(*example.args, **example.kwargs), layers.values())
    found: dict[nn.Module, nn.Module] = {}
    lines = []
    for name, module in layers.items():
        line, layer = _tried(name, module, met.get(module), codes, terms)
        lines.append(line)
        if layer is not None:
            found[module] = layer
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in found:
                setattr(parent, name, found[child])
    return found.get(model, model), lines


def _tried(name: str, module: Any, met: Met | None, codes: Codes, terms: _Terms) -> tuple[Int8Layer, Int8Linear | None]:
    line = Int8Layer(name, tuple(module.weight.shape), _zeros(module.weight))
    if reason := _refused(module, met):
        return replace(line, reason=reason), None
    assert met is not None
    coded = codes.of(f"{name}.weight".lstrip("."), module.weight.detach())
    if isinstance(coded, str):
        return replace(line, reason=coded), None
    line = replace(line, codes=coded.origin, error=coded.error)
    made, module = Int8Linear(coded, module.bias), _same(module, coded)
    difference = relative(made(met.x), module(met.x))
    times = _timed({_FLOAT: module, _INT8: made}, met.x)
    dense, int8 = (statistics.median(times[way]) for way in (_FLOAT, _INT8))
    line = replace(line, dense=dense, int8=int8, difference=difference)
    if not difference <= terms.tolerance:
        reason = f"its outputs differ by more than tolerance={terms.tolerance!r}"
    elif not _faster(times, terms.margin):
        reason = f"not clearly faster: int8 takes {int8 / dense:.2f} of float"
    else:
        return replace(line, way=_INT8, reason="faster"), made
    return replace(line, reason=reason), None


def _refused(module: Any, met: Met | None) -> str:
    """Why a linear layer stays as it is; empty if it need not."""
    if any(getattr(module, name) for name in _HOOKS):
        return "has hooks, which may change its weight or its outputs"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "its weight is made from others (torch.nn.utils.parametrize.remove_parametrizations keeps it)"
    if met is None:
        return "the example does not call it, or its weight is read by the module around it"
    if not module.weight.numel() or not met.x.numel():
        return "has no weights, or the example gives it nothing"
    return ""


def _same(module: nn.Linear, coded: Coded) -> nn.Linear:
    """The layer in float, with the weights that the codes stand for."""
    same = copy.deepcopy(module)
    same.weight.copy_(coded.weight())
    return same


def _judged(dense: nn.Module, made: nn.Module, lines: list[Int8Layer], example: Example, terms: _Terms) -> Int8Report:
    """The whole, beside itself in float."""
    calls: dict[str, Callable[[], Any]] = {
        name: lambda model=model: model(*example.args, **example.kwargs)  # type: ignore[misc]
        for name, model in ((_FLOAT, dense), (_INT8, made))
    }
    report = Int8Report(lines, torch.get_num_threads(), example.described(), False, 0.0)
    if not any(line.way for line in lines):
        tried = any(line.dense for line in lines)
        return replace(report, reason="no layer was faster as int8" if tried else "no layer could be tried as int8")
    wanted, got = (named_tensors(call())[0] for call in calls.values())
    floats = [name for name, tensor in wanted.items() if tensor.is_floating_point()]
    difference = max((relative(got[name], wanted[name]) for name in floats), default=0.0)
    with torch.inference_mode():
        times = race(calls, _FLOAT)
    seconds = {name: statistics.median(seen) for name, seen in times.items()}
    report = replace(report, difference=difference, dense=seconds[_FLOAT], int8=seconds[_INT8])
    if not difference <= terms.tolerance:
        reason = f"its outputs differ by {difference:.2g} of the largest, above tolerance={terms.tolerance!r}"
        return replace(report, reason=reason)
    faster = _faster(times, terms.margin)
    return replace(report, replaced=faster, reason="" if faster else "as a whole it was not clearly faster as int8")


def _faster(times: Times, margin: float) -> bool:
    """Faster in most rounds, in the median and in the best: where others make a machine wait, one of them may err."""
    best, middle = (all_of(times[_FLOAT]) > (1 + margin) * all_of(times[_INT8]) for all_of in (min, statistics.median))
    return best and middle and clearly_faster(times, _FLOAT, _INT8, margin)


def _zeros(weight: Tensor) -> float:
    return 1 - int(torch.count_nonzero(weight)) / max(1, weight.numel())


def _timed(layers: dict[str, nn.Module], x: Tensor) -> Times:
    with torch.inference_mode():
        return race({name: (lambda layer=layer: layer(x)) for name, layer in layers.items()}, _FLOAT)  # type: ignore[misc]
