"""What every trained quantisation shares: its hooks around the optimizer's step, and what it refuses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from prunewald.model.optimizers import owned, with_closures
from prunewald.model.slices import Slice
from prunewald.pruner import Pruner
from prunewald.pruning.selecting import by_part

_quantised: WeakSet[Pruner] = WeakSet()


class Quantised(ABC):
    """The hooks around each step of a Pruner's optimizers; between steps the weights take their few values."""

    def __init__(self, pruner: Pruner, chosen: Mapping[str, int]) -> None:
        self.pruner = pruner
        self.parts = {part.name: part for part in pruner.parts if part.name in chosen}
        named = dict(pruner.model.named_parameters())
        self._params = {part.param: named[part.param] for part in self.parts.values()}
        for name, param in self._params.items():
            if not bool(torch.isfinite(param).all()):
                raise ValueError(f"{name!r} has NaN or infinite weights: quantise an earlier checkpoint")
        self._owners = owned(self._params, pruner.optimizers)
        self._handles: list[Any] = []

    def _attach_(self) -> None:
        # After the Pruner's own hooks: what it has just pruned is zero already.
        for optimizer in self.pruner.optimizers:
            self._handles.append(optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step)))
            self._handles.append(optimizer.register_step_post_hook(torch.compiler.disable(self._after_step)))
        _quantised.add(self.pruner)

    def detach(self) -> None:
        """Let go: the weights keep the values they have, and train on freely."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        _quantised.discard(self.pruner)

    @abstractmethod
    def _ready_(self, parts: Iterable[Slice]) -> None:
        """Prepare weights and gradients for the optimizer to move them."""

    @abstractmethod
    def _settle_(self, parts: Iterable[Slice]) -> None:
        """Give the weights their few values, as the model is to see them."""

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        own = self._parts_of(optimizer)
        given = with_closures(args, kwargs, lambda closure: self._settled(closure, own))
        if given is None:
            self._ready_(own)
        return given

    def _settled(self, closure: Callable[..., Any], own: list[Slice]) -> Callable[..., Any]:
        """A closure that is evaluated with the few values, and whose gradients the optimizer is ready to use."""

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                self._settle_(own)
            loss = closure(*args, **kwargs)
            with torch.no_grad():
                self._ready_(own)
            return loss

        return evaluate

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        self._settle_(self._parts_of(optimizer))

    def _parts_of(self, optimizer: Optimizer) -> list[Slice]:
        at = next(i for i, own in enumerate(self.pruner.optimizers) if own is optimizer)
        return [part for part in self.parts.values() if part.param in self._owners[at]]

    def _weight(self, part: Slice) -> Tensor:
        return part.take(self._params[part.param].detach())

    def _check_state(self, state: Mapping[str, Any], keys: tuple[str, str]) -> None:
        if not isinstance(state, Mapping) or not set(keys) <= state.keys():
            held = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"not the state of {type(self).__name__}: it has {held}, and should have {list(keys)}")
        for key in keys:
            if state[key].keys() != self.parts.keys():
                raise ValueError(f"the saved {key} are of {sorted(state[key])}, the targets here {sorted(self.parts)}")
        for name, part in self.parts.items():
            if (saved := state[keys[0]][name].shape) != (here := self._weight(part).shape):
                raise ValueError(f"the saved {keys[0]} of {name!r} have shape {tuple(saved)}, not {tuple(here)}")

    def __getstate__(self) -> None:
        raise TypeError(f"{type(self).__name__} is tied to an optimizer by hooks, which do not copy: use state_dict()")


def check_pruner(pruner: Pruner, what: str) -> None:
    """Refuse what cannot be quantised, or not yet."""
    if not isinstance(pruner, Pruner):
        raise TypeError(f"{what} takes a Pruner, not {type(pruner).__name__}: Pruner(model, optimizer)")
    if not pruner.optimizers:
        raise ValueError(f"{what} trains by the steps of an optimizer, and this Pruner has none: give it one")
    if getattr(pruner, "active", False):
        raise ValueError(f"{what} needs the survivors, and this Surgery still exchanges them: finish() it first")
    if pruner in _quantised:
        raise ValueError(f"the weights of this Pruner are quantised already: detach() that before a new {what}")


def by_target(pruner: Pruner, what: str, given: int | Mapping[str, int], most: int) -> dict[str, int]:
    """A number by target, of one for all, or of a dict that leaves others out."""
    for key, number in given.items() if isinstance(given, Mapping) else [("", given)]:
        if isinstance(number, bool) or not isinstance(number, Integral) or not 2 <= number <= most:
            of = f" for {key!r}" if key else ""
            raise ValueError(f"{what}{of} must be a whole number of 2 to {most}, not {number!r}")
    if not isinstance(given, Mapping):
        return dict.fromkeys((part.name for part in pruner.parts), given)
    chosen = by_part(pruner.model, pruner.parts, given, what)
    return {name: int(number) for name, number in chosen.items()}
