"""What a penalty in a loss hands to autograd, so that it can be told from the gradient of the data."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

_KEPT = 8  # backward passes of which notes are kept: one that failed clears none up, and some run within others

_notes: dict[int, dict[Tensor, list[Tensor]]] = {}  # by backward pass and parameter: the gradients of penalties
_tracing: list[bool] = []  # not empty while a penalty's gradient is led back to a parameter


class _Noted(torch.autograd.Function):
    """The tensor itself; on the way back its gradient, which is all of a penalty's, is noted."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.tensor = tensor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        with torch.no_grad():
            _note(ctx.tensor, grads[0].detach())
        return grads[0]


def _noted(tensor: Tensor) -> Tensor:
    """The same tensor, for a penalty to be computed from."""
    # Under torch.func nobody listens for gradients, and the values are not those of one parameter.
    inside: Any = torch._C._functorch.peek_interpreter_stack()
    if inside is not None or not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor
    found: Tensor = _Noted.apply(tensor)  # type: ignore[no-untyped-call]
    return found


noted: Callable[[Tensor], Tensor] = torch.compiler.disable(_noted)  # a graph that is compiled could note nothing


def without_penalties(param: Tensor, grad: Tensor) -> Tensor:
    """A parameter's gradient in the backward pass under way, less what penalties have added to it: the data's.

    Exactly zero where the data add nothing: notes come, and are summed, in the order in which autograd sums them.
    """
    own = _notes.get(torch._C._current_graph_task_id(), {}).get(param, [])
    if not own:
        return grad
    total = own[0]
    for one in own[1:]:
        total = total + one
    return grad - total


def tracing() -> bool:
    """Whether the gradient that arrives now is a penalty's own, on its way from a part of a parameter to the whole."""
    return bool(_tracing)


def _note(tensor: Tensor, grad: Tensor) -> None:
    task = torch._C._current_graph_task_id()
    if task not in _notes:
        while len(_notes) >= _KEPT:
            del _notes[min(_notes)]
        _notes[task] = {}
        torch.autograd.Variable._execution_engine.queue_callback(partial(_forget, task))
    for param, own in [(tensor, grad)] if tensor.is_leaf else _led_back(tensor, grad):
        _notes[task].setdefault(param, []).append(own)


def _forget(task: int) -> None:
    _notes.pop(task, None)


def _led_back(tensor: Tensor, grad: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The gradients of the parameters that a tensor was made from, as autograd is about to compute them."""
    params = _leaves(tensor)
    _tracing.append(True)
    try:
        found = torch.autograd.grad(tensor, params, grad, retain_graph=True, allow_unused=True)
    finally:
        _tracing.pop()
    return [(param, own) for param, own in zip(params, found, strict=True) if own is not None]


def _leaves(tensor: Tensor) -> list[Tensor]:
    """The leaves of the graph behind a tensor."""
    found: dict[Tensor, None] = {}
    nodes: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            if node.name().endswith("AccumulateGrad"):
                found[node.variable] = None
    return list(found)
