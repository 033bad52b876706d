"""What every trained quantisation shares: the slices it holds, and what it refuses."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from prunewald.model.slices import Slice
from prunewald.pruner import Pruner
from prunewald.pruning.by_layer import by_slice
from prunewald.pruning.holding.holding import Holding
from prunewald.util.arguments import whole


class Quantised(Holding):
    """Holds the survivors of a Pruner's targets at a few values; between steps the weights take no others."""

    def __init__(self, pruner: Pruner, chosen: Mapping[str, int]) -> None:
        self.pruner = pruner
        self.slices = {part.name: part for part in pruner.slices if part.name in chosen}
        self._params = {part.param: pruner.zeros.params[part.param] for part in self.slices.values()}
        for name, param in self._params.items():
            if not bool(torch.isfinite(param).all()):
                raise ValueError(f"{name!r} has NaN or infinite weights: quantise an earlier checkpoint")

    def detach(self) -> None:
        """Let go: the weights keep the values they have, and train on freely."""
        self.pruner.let_go(self)

    @abstractmethod
    def ready_slices_(self, slices: Iterable[Slice]) -> None:
        """Prepare weights and gradients of these slices for the optimizer to move them."""

    @abstractmethod
    def settle_slices_(self, slices: Iterable[Slice]) -> None:
        """Give these slices their few values, as the model is to see them."""

    def ready_(self, names: Collection[str]) -> None:
        """Prepare the slices that lie in these parameters."""
        self.ready_slices_([part for part in self.slices.values() if part.param in names])

    def settle_(self, names: Collection[str]) -> None:
        """Settle the slices that lie in these parameters."""
        self.settle_slices_([part for part in self.slices.values() if part.param in names])

    def _weight(self, part: Slice) -> Tensor:
        return part.take(self._params[part.param].detach())

    def _check_state(self, state: Mapping[str, Any], keys: tuple[str, str]) -> None:
        if not isinstance(state, Mapping) or not set(keys) <= state.keys():
            held = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"not the state of {type(self).__name__}: it has {held}, and should have {list(keys)}")
        for key in keys:
            if state[key].keys() != self.slices.keys():
                raise ValueError(f"the saved {key} are of {sorted(state[key])}, the targets here {sorted(self.slices)}")
        for name, part in self.slices.items():
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
    if any(holding.competes for holding in pruner.holdings):
        raise ValueError(f"{what} needs the survivors, and this Surgery still exchanges them: finish() it first")
    if any(isinstance(holding, Quantised) for holding in pruner.holdings):
        raise ValueError(f"the weights of this Pruner are quantised already: detach() that before a new {what}")


def by_target(pruner: Pruner, what: str, given: int | Mapping[str, int], most: int) -> dict[str, int]:
    """The number of each target: one for all of them, or a dict by name or glob, which leaves the others out."""
    for key, number in given.items() if isinstance(given, Mapping) else [("", given)]:
        whole(f"{what} for {key!r}" if key else what, number, 2, most)
    if not isinstance(given, Mapping):
        return dict.fromkeys((part.name for part in pruner.slices), given)
    return {name: int(number) for name, number in by_slice(pruner.model, pruner.slices, given, what).items()}
