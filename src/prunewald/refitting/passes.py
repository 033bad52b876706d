"""Forward passes of a pruned model, or of a part of it, and of its dense original on the same examples."""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from prunewald.refitting.chains import Chain, watched
from prunewald.refitting.feed import Given
from prunewald.refitting.order import Enough, Following, Step, Trace
from prunewald.refitting.originals import Originals, named_tensors
from prunewald.refitting.seeing import Event, Seeing, convolutions
from prunewald.refitting.units import Places


class _Caller(nn.Module):
    """A module that is called with what knows how to call it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, given: Given) -> Any:
        return given.call(self.module, dense=True)


class Passes:
    """Runs a part of a model with its own weights, or with the dense ones in their place."""

    def __init__(self, module: nn.Module, names: dict[int, str], dense: Originals, targets: Collection[str]) -> None:
        self.module, self._caller = module, _Caller(module)
        own = {names[id(tensor)]: tensor for tensor in named_tensors(module).values() if id(tensor) in names}
        found = dense.read(own)
        local = {f"module.{name}": names[id(tensor)] for name, tensor in named_tensors(module).items()}
        self._dense = {name: found[full] for name, full in local.items()}
        weights = [name for name, tensor in own.items() if name in targets or tensor.dim() < 2]
        means = [name for name in own if name.rpartition(".")[2] == "running_mean"]
        self._places = [Places({name: source[name] for name in weights}) for source in (own, found)]
        self._norms = [Places({name: source[name] for name in means}) for source in (own, found)]
        self._convolutions = {names[id(layer.weight)]: layer for layer in convolutions(module)}

    def trace(self, given: Given, chains: list[Chain]) -> tuple[Trace, set[str], set[str]]:
        """What happens in a pass: the layers in order, all weights that took part, and those that are an embedding."""
        trace, used, looked_up = Trace(), set[str](), set[str]()
        with watched(chains, trace.enter), torch.no_grad():
            places, norms = self._places[False], self._norms[False]
            with Seeing(places, norms, self._convolutions, trace, used, looked_up):
                given.call(self.module, dense=False)
        trace.done()
        return trace, used, looked_up

    def see(
        self, given: Given, order: Sequence[Hashable], step: Step, take: Callable[[Event], None], *, dense: bool
    ) -> None:
        """Run the module until all of a step was seen."""
        following = Following(order, step, take)
        try:
            with Seeing(self._places[dense], self._norms[dense], self._convolutions, following):
                self.run(given, dense=dense)
        except Enough:
            return
        following.check()

    @torch.no_grad()
    def run(self, given: Given, *, dense: bool) -> Any:
        """What the module returns."""
        if dense:
            return functional_call(self._caller, self._dense, (given,))
        return given.call(self.module, dense=False)
