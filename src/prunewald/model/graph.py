"""The coupled groups of a model: found by one forward pass, in which each unit of each parameter is followed."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from prunewald.model.coupling import Units
from prunewald.model.flow import Cut, Flow, Listener, Turns, UntraceableError, tensors
from prunewald.model.groups import Group, Member
from prunewald.model.modules import evaluating, plain

_PASSES = 8


@dataclass(frozen=True)
class Graph:
    """What one forward pass tells of the units of a model."""

    groups: list[Group]
    roots: dict[str, list[np.ndarray[Any, Any]]]  # by parameter, for each axis: a number for each position, its unit's
    fixed: dict[int, str]  # why a unit can never go
    cuts: list[Cut]
    units: Units


def find_groups(model: nn.Module, example_inputs: Any) -> list[Group]:
    """The groups of units that can go from a model, each with all that goes with it, in the order of its parameters.

    `example_inputs` are a tensor, a tuple of arguments, or a dict of keyword arguments: what the model is called with.
    It runs once or twice in eval mode, without gradients, and is as before afterwards. What can never go is in no
    group: widths that a LayerNorm or an RMSNorm is taken over, inputs and outputs of the model, whatever meets an
    operation that is not known. A ValueError where the pass cannot be followed: what is computed decides what is done.
    """
    return follow(model, example_inputs).groups


def follow(model: nn.Module, example_inputs: Any, listener: Listener | None = None) -> Graph:
    """Run a model, and follow its units; a listener looks on in each pass, of which the last one counts."""
    inside, turns = plain(model), Turns()
    named = {name: x for name, x in (*inside.named_parameters(), *inside.named_buffers()) if x.dim()}
    for _ in range(_PASSES):
        units = Units()
        flow = Flow(named, units, turns, listener)
        with placed(inside, flow.places):
            outputs = run(inside, example_inputs, flow)
        flow.leave(tensors(outputs))
        if not flow.again:
            break
    return _graph(inside, flow)


def arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list) and example_inputs:
        return tuple(example_inputs), {}
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    raise TypeError(
        f"example_inputs={repr(example_inputs)[:200]}: give a tensor, a tuple of arguments, or a dict of keyword "
        "arguments, as the model is called with"
    )


def run(model: nn.Module, example_inputs: Any, flow: Flow | None = None) -> Any:
    """What a model gives for example inputs in eval mode; modes and the state of random numbers stay as they were."""
    args, kwargs = arguments(example_inputs)
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(torch.no_grad())
        stack.enter_context(_plainly())
        if flow is not None:
            flow.enter(tensors((args, kwargs)))
            stack.enter_context(flow)
        try:
            return model(*args, **kwargs)
        except UntraceableError:
            raise
        except Exception as error:
            raise ValueError(
                f"{type(model).__name__} does not run on these example_inputs: {error}. Give what it is called with: a "
                "tensor, a tuple of arguments, or a dict of keyword arguments"
            ) from error


@contextmanager
def _plainly() -> Iterator[None]:
    """Without kernels that do many steps in one, and without compiled code: each step is seen."""
    fast = torch.backends.mha.get_fastpath_enabled()
    stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6 and newer
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if stance is not None:
            stack.enter_context(stance("force_eager"))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def placed(model: nn.Module, places: list[str]) -> Iterator[None]:
    """Inside, a list has the names of the modules that run, the innermost last."""
    handles = []

    def leave(*_: Any) -> None:
        places.pop()

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, at=name: places.append(at)))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _graph(model: nn.Module, flow: Flow) -> Graph:
    roots = {
        name: [np.zeros(0, np.int64) if ids is None else flow.units.roots(ids) for ids in axes]
        for name, axes in flow.axes.items()
    }
    fixed: dict[int, str] = {}
    places: dict[int, list[tuple[str, int, list[int]]]] = {}  # by unit: parameters, axes, positions
    for name, axes in roots.items():
        for axis, ids in enumerate(axes):
            order = np.argsort(ids, kind="stable")
            found, starts = np.unique(ids[order], return_index=True)
            for root, at in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
                if (why := flow.units.why_fixed(root)) is not None:
                    fixed[root] = why
                else:
                    places.setdefault(root, []).append((name, axis, at.tolist()))
    alike: dict[tuple[Any, ...], list[list[tuple[str, int, list[int]]]]] = {}
    for place in places.values():
        kinds = tuple((name, axis, len(at)) for name, axis, at in place)
        if any(flow.roles.get((name, axis)) == "makes" for name, axis, _ in place):
            alike.setdefault(kinds, []).append(place)
    groups = [_group(kinds, sorted(units, key=lambda one: one[0][2]), flow) for kinds, units in alike.items()]
    return Graph(groups, roots, fixed, flow.cuts, flow.units)


def _group(kinds: tuple[Any, ...], units: list[list[tuple[str, int, list[int]]]], flow: Flow) -> Group:
    members = tuple(
        Member(name, axis, torch.tensor([unit[i][2] for unit in units]), flow.roles.get((name, axis), "beside"))  # type: ignore[arg-type]
        for i, (name, axis, _) in enumerate(kinds)
    )
    first = next(member.name for member in members if member.role == "makes")
    return Group(first.rpartition(".")[0] or first, len(units), members)
