"""The call: a model and an example in, a copy that runs without its zeros where that is faster out."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunewald.model.layouts import survey
from prunewald.model.modules import plain
from prunewald.pruning.noticing import ModelHook
from prunewald.sparse.backends import BACKENDS, missing
from prunewald.sparse.fusing import chained, fuse, put, sequentials
from prunewald.sparse.recorded import record
from prunewald.sparse.sparse_layers import SparseLinear, swapped
from prunewald.sparse.speed_report import LayerSpeed, SpeedReport
from prunewald.sparse.stopwatch import clearly_faster, typical
from prunewald.sparse.trial import DENSE, Conditions, agree, judge, linear, refused, timed
from prunewald.util.arguments import one_of, real
from prunewald.util.notices import warn

_SPARSE, _INSTEAD = "sparse", "sparse_report"


@runtime_checkable
class HasModel(Protocol):
    """A Pruner, of which only the model is asked for."""

    @property
    def model(self) -> nn.Module:
        """The model, with its weights as they are now."""


def run_sparse(
    model: nn.Module | HasModel,
    example_inputs: Any,
    *,
    backends: str | Sequence[str] = BACKENDS,
    margin: float = 0.05,
) -> nn.Module:
    """A copy of a model for inference on this machine's CPU, in which layers run without their zeros where that pays.

    `example_inputs` is what the model is called with: a tensor, a tuple of positional or a dict of keyword arguments.
    Every way is measured on it, at torch's present number of threads, and a layer is replaced only where that is faster
    by more than `margin`; in the end so is the whole. `backends` are those that may be tried: "torch", "mkl", "c".

    The copy is in eval mode and nothing in it asks for gradients; its state_dict has the names and the dense tensors of
    the model. `print(fast.report)` shows what was chosen, and why. The model is untouched; of a Pruner it is the model
    with its weights as they are at this moment.
    """
    allowed = _backends(backends)
    on = Conditions(allowed, torch.get_num_threads(), real("margin", margin, least=0))
    inside, (args, kwargs) = _inside(model), _example(example_inputs)
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
        dense = _copied(inside)
        fast, lines = _replaced(copy.deepcopy(dense), args, kwargs, on)
        report = _compared(dense, fast, args, kwargs, lines, on)
    found = fast if report.replaced else dense
    taken = "report" in dir(found) and not isinstance(found.report, SpeedReport)
    if taken:
        warn(f"the model has a 'report' of its own: that of run_sparse() is its {_INSTEAD!r}")
    setattr(found, _INSTEAD if taken else "report", report)
    return found


def _backends(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        one_of("backends", name, BACKENDS)
    return names


def _inside(given: Any) -> nn.Module:
    """The model that was handed over, itself or in a Pruner, if it can run here."""
    found = given if isinstance(given, nn.Module) else given.model if isinstance(given, HasModel) else None
    if not isinstance(found, nn.Module):
        raise TypeError(f"model={repr(given)[:200]}: give a torch.nn.Module, or a Pruner")
    inside = plain(found)
    if any(isinstance(module, SparseLinear) for module in inside.modules()):
        raise ValueError("the model was made by run_sparse() already: give the dense one that it was made from")
    for name, tensor in [*inside.named_parameters(), *inside.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name!r} is on {tensor.device}, and run_sparse() is for the CPU: give copy.deepcopy(model).cpu()"
            )
    return inside


def _example(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else ((given,), {})
    args = tuple(given) if isinstance(given, tuple | list) else args
    for one in tree_leaves((args, kwargs)):
        if isinstance(one, Tensor) and one.device.type != "cpu":
            raise ValueError(f"example_inputs has a tensor on {one.device}: give it on the CPU, where it is to run")
    return args, kwargs


def _copied(model: nn.Module) -> nn.Module:
    """A copy for inference, without the hooks by which a Pruner watches the model."""
    mine = {
        name: [place for place, hook in module._forward_pre_hooks.items() if isinstance(hook, ModelHook)]
        for name, module in model.named_modules()
    }
    try:
        made = copy.deepcopy(model).eval().requires_grad_(False)
    except Exception as error:
        said = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise ValueError(
            f"the model cannot be copied ({said}): copy.deepcopy(model) has to work; where torch.nn.utils.prune has "
            "pruned it, torch.nn.utils.prune.remove() first"
        ) from error
    for name, places in mine.items():
        for place in places:
            del made.get_submodule(name)._forward_pre_hooks[place]
    return made


def _replaced(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], on: Conditions
) -> tuple[nn.Module, list[LayerSpeed]]:
    """The model with its layers replaced where that pays, and the table."""
    layers = {module: name for name, module in model.named_modules() if linear(module)}
    rows = sequentials(model)
    met = record(lambda: model(*args, **kwargs), [*(one for one in layers if not refused(one)), *rows.values()])
    may_chain = chained(model, layers.__contains__) if "c" in on.backends else set()
    verdicts = {
        module: judge(name or "the model", module, met.get(module), on, module in may_chain)
        for module, name in layers.items()
    }
    lines, instead = [one.line for one in verdicts.values()], dict[nn.Module, nn.Module]()
    for name, sequential in rows.items() if "c" in on.backends else ():
        if sequential in met:
            fused = fuse(name, sequential, met[sequential], verdicts, on)
            lines += fused.lines
            instead |= fused.instead
    instead |= {module: put(module, verdicts, False) for module in layers if module not in instead}
    return swapped(model, instead), [*lines, *_others(model, layers)]


def _others(model: nn.Module, layers: Mapping[nn.Module, str]) -> list[LayerSpeed]:
    """The weights that no linear layer holds, which stay as they are."""
    mine = {id(param) for module in layers for param in module.parameters(recurse=False)}
    found = []
    for name in survey(model).weights:
        param = model.get_parameter(name)
        module = model.get_submodule(name.rpartition(".")[0])
        if id(param) not in mine and not isinstance(module, nn.utils.parametrize.ParametrizationList):
            kind = type(module).__name__
            zeros = 1 - param.count_nonzero().item() / param.numel()
            reason = f"{kind}: only linear layers run sparse"
            found.append(LayerSpeed(name, tuple(param.shape), zeros, 0, "", None, None, reason))
    return found


def _compared(
    dense: nn.Module, fast: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], lines: list[LayerSpeed],
    on: Conditions,
) -> SpeedReport:  # fmt: skip
    """The whole model against the dense one; one that is not clearly faster, or not the same, is not taken."""
    notes = missing(on.backends)
    example = ", ".join(_described(one) for one in [*args, *kwargs.values()])
    if not any(one.way for one in lines):
        return SpeedReport(lines, on.threads, example, None, None, False, notes)
    drawn = torch.get_rng_state()  # the same numbers for both, if they draw any
    wanted = dense(*args, **kwargs)
    torch.set_rng_state(drawn)
    if not _same(fast(*args, **kwargs), wanted):
        notes.append("the outputs on the example were not those of the dense model, or not finite")
        return SpeedReport(lines, on.threads, example, None, None, False, notes)
    times = timed({DENSE: lambda: dense(*args, **kwargs), _SPARSE: lambda: fast(*args, **kwargs)})
    wins = clearly_faster(times, DENSE, _SPARSE, on.margin)
    return SpeedReport(lines, on.threads, example, typical(times[DENSE]), typical(times[_SPARSE]), wins, notes)


def _same(got: Any, wanted: Any) -> bool:
    pairs = zip(tree_leaves(got), tree_leaves(wanted), strict=True)
    return all(agree(a, b) for a, b in pairs if isinstance(b, Tensor) and b.is_floating_point())


def _described(given: Any) -> str:
    return f"a tensor {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
