"""The hooks around each step of the optimizers."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from prunewald.model.optimizers import unwrapped, with_closures
from prunewald.pruning.holding.holding import Holding


class Stepping:
    """Runs what belongs around each optimizer step, in order: holdings make ready, the step, `after`, holdings settle.

    `after(at, optimizer)` is what the Pruner does after a step of its optimizer number `at`. `kept` are they and
    what is wrapped around them, one for each state that is kept.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        owners: Sequence[Collection[str]],
        after: Callable[[int, Optimizer], None],
        kept: Sequence[Any] = (),
    ) -> None:
        self.optimizers, self._owners, self._after = optimizers, owners, after
        self.kept = kept or optimizers
        self.holdings: list[Holding] = []
        hook = torch.compiler.disable(self._after_step)
        self._handles: list[Any] = [optimizer.register_step_post_hook(hook) for optimizer in optimizers]
        self._early: list[Any] = []

    def add(self, holding: Holding) -> None:
        """Let a further way of holding act around every step; only then is there anything to do before one."""
        if not self.holdings:
            hook = torch.compiler.disable(self._before_step)
            self._early = [optimizer.register_step_pre_hook(hook) for optimizer in self.optimizers]
        self.holdings.append(holding)

    def drop(self, holding: Holding) -> None:
        """Let a way of holding act no more."""
        holding.end_()
        self.holdings = [one for one in self.holdings if one is not holding]
        if not self.holdings:
            _remove(self._early)

    def release(self) -> None:
        """Let every way of holding act no more, and take all hooks away."""
        for holding in self.holdings:
            holding.end_()
        self.holdings = []
        _remove(self._early)
        _remove(self._handles)

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        own = self._owners[self._at(optimizer)]
        given = with_closures(args, kwargs, lambda closure: self._around(closure, own))
        if given is None:
            self._ready_(own)
        return given

    def _around(self, closure: Callable[..., Any], own: Collection[str]) -> Callable[..., Any]:
        """A closure that evaluates the model with settled weights, and leaves them ready for the optimizer."""

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                self._settle_(own)
            loss = closure(*args, **kwargs)  # an error in it ends the step: then they stay settled
            with torch.no_grad():
                self._ready_(own)
            return loss

        return evaluate

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        at = self._at(optimizer)
        try:
            self._after(at, self.optimizers[at])
        finally:
            self._settle_(self._owners[at])

    def _ready_(self, own: Collection[str]) -> None:
        for holding in self.holdings:
            holding.ready_(own)

    def _settle_(self, own: Collection[str]) -> None:
        for holding in self.holdings:
            holding.settle_(own)

    def _at(self, optimizer: Optimizer) -> int:
        for known in (optimizer, unwrapped(optimizer)):
            for at, own in enumerate(self.optimizers):
                if own is known:
                    return at
        # Never a StopIteration: a training loop would take it for the end of its epoch.
        raise RuntimeError(
            f"a step of {type(optimizer).__name__}, which this Pruner was not given: make a new one as "
            "Pruner(model, optimizer) with the optimizer that steps, or with what wraps it"
        )


def after_backward(act: Callable[[], None]) -> None:
    """Do something now, or at the end of the backward pass under way, which still needs the weights as they are.

    Some loops step each parameter within the backward pass, as soon as its gradient is there.
    """
    if torch._C._current_graph_task_id() == -1:
        act()
    else:
        torch.autograd.Variable._execution_engine.queue_callback(torch.no_grad()(act))


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
