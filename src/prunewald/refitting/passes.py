"""Forward passes of a pruned model, or of a part of it, and of its dense original on the same examples."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunewald.refitting.chains import Chain, entered, replaced, watched
from prunewald.refitting.feed import Given
from prunewald.refitting.order import Enough, Following, Step, Trace
from prunewald.refitting.originals import Originals, named_tensors
from prunewald.refitting.seeing import Event, Seeing, convolutions
from prunewald.refitting.units import Places

_NONE: Mapping[str, nn.Module] = {}


@dataclass(frozen=True)
class _Side:
    """The tensors of a module by name, its own or the dense ones, and where the weights and running means are."""

    tensors: Mapping[str, Tensor]
    weights: Places
    means: Places


class _Caller(nn.Module):
    """A module that is called with what knows how to call it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, given: Given) -> Any:
        return given.call(self.module, dense=True)


class _Other(nn.Module):
    """A module as it computes before something was put in the place of that."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self._kept = module, module.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._kept(*args, **kwargs)


class Passes:
    """Runs a part of a model with its own weights, or with the dense ones in their place.

    `blocks` are modules in it whose dense weights are read when one of them computes, and let go of then.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Mapping[int, str],
        dense: Originals,
        targets: Collection[str],
        blocks: Iterable[nn.Module] = (),
    ) -> None:
        self.module, self._caller, self._names, self._read = module, _Caller(module), names, dense
        self._blocks, self._targets = list(blocks), targets
        self._own = self._side({names[id(tensor)]: tensor for tensor in named_tensors(module).values()})
        self._convolutions = {names[id(layer.weight)]: layer for layer in convolutions(module)}

    @cached_property
    def _other(self) -> "_Side":
        """The dense tensors, read when they are first needed, but for those of the blocks."""
        inside = {id(tensor) for block in self._blocks for tensor in named_tensors(block).values()}
        apart = {id(one) for block in self._blocks for one in block.modules()}
        for one in self.module.modules():
            if id(one) not in apart:
                inside -= {id(tensor) for tensor in (*one.parameters(recurse=False), *one.buffers(recurse=False))}
        like = {name: tensor for name, tensor in self._own.tensors.items() if id(tensor) not in inside}
        return self._side(self._read.read(like))

    def let_go(self) -> None:
        """Keep no dense tensors: they are read again if they are needed."""
        vars(self).pop("_other", None)

    def _side(self, tensors: dict[str, Tensor]) -> "_Side":
        return _Side(tensors, Places(self._w(tensors)), Places(_means(tensors)))

    def _w(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that are meant, and all biases."""
        return {name: tensor for name, tensor in tensors.items() if name in self._targets or tensor.dim() < 2}

    def trace(
        self, given: Given, chains: list[Chain], children: Mapping[str, nn.Module] = _NONE
    ) -> tuple[Trace, set[str], set[str]]:
        """What happens in a pass: the layers in order, all weights that took part, and those that are an embedding."""
        trace, used, looked_up = Trace(), set[str](), set[str]()
        with watched(chains, trace.enter), entered(children, trace.enter_child, trace.leave_child), torch.no_grad():
            own = self._own
            with Seeing(own.weights, own.means, self._convolutions, trace, used, looked_up):
                given.call(self.module, dense=False)
        trace.done()
        return trace, used, looked_up

    def see(
        self, given: Given, order: Sequence[Hashable], step: Step, take: Callable[[Event], None], *, dense: bool
    ) -> None:
        """Run the module until all of a step was seen."""
        following = Following(order, step, take)
        side = self._other if dense else self._own
        try:
            with Seeing(side.weights, side.means, self._convolutions, following, early=not dense):
                self.run(given, dense=dense)
        except Enough:
            return
        following.check()

    def see_all(self, given: Given, order: Sequence[Hashable], take: Callable[[Event], None]) -> Any:
        """Run the dense module to its end, see every layer, and return what it does."""
        following, side = Following(order, None, take), self._other
        with Seeing(side.weights, side.means, self._convolutions, following):
            found = self.run(given, dense=True)
        following.check()
        return found

    @torch.no_grad()
    def run(self, given: Given, *, dense: bool) -> Any:
        """What the module returns."""
        if not dense:
            return given.call(self.module, dense=False)
        found = self._other.tensors
        local = {f"module.{name}": self._names[id(tensor)] for name, tensor in named_tensors(self.module).items()}
        with replaced(self._blocks, self._reading):
            dense_tensors = {name: found[full] for name, full in local.items() if full in found}
            return functional_call(self._caller, dense_tensors, (given,))

    def _reading(self, block: nn.Module) -> Callable[..., Any]:
        """A block that computes with its dense weights, which are read for that."""
        other = _Other(block)
        local = {f"module.{name}": self._names[id(tensor)] for name, tensor in named_tensors(block).items()}
        like = {self._names[id(tensor)]: tensor for tensor in named_tensors(block).values()}

        def compute(*args: Any, **kwargs: Any) -> Any:
            found = self._read.read(like)
            side = self._other
            seen = ((side.weights, self._w(found)), (side.means, _means(found)))
            for places, tensors in seen:
                places.add(tensors)
            try:
                return functional_call(other, {name: found[full] for name, full in local.items()}, args, kwargs)
            finally:
                for places, tensors in seen:
                    places.drop(tensors)

        return compute


def _means(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The running means of BatchNorms."""
    return {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] == "running_mean"}
