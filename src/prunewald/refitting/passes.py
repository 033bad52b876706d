"""Forward passes of a pruned model and of its dense original, on the same examples, of which what is wanted is seen."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from prunewald.refitting.examples import Given
from prunewald.refitting.order import Enough, Following, Step, Trace
from prunewald.refitting.seeing import Event, Seeing, convolutions
from prunewald.refitting.units import Places


class _Caller(nn.Module):
    """A model that is called with what knows how to call it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, given: Given) -> Any:
        return given.call(self.module)


class Passes:
    """Runs a model with its own weights, or with the dense ones in their place."""

    def __init__(self, model: nn.Module, dense: Mapping[str, Tensor], targets: Iterable[str]) -> None:
        self.model, self._caller = model, _Caller(model)
        self._dense = {f"module.{name}": tensor for name, tensor in dense.items()}
        self._convolutions = convolutions(model)
        params, wanted = dict(model.named_parameters()), set(targets)
        names = [name for name, param in params.items() if name in wanted or param.dim() < 2]
        buffers = dict(model.named_buffers())
        means = [name for name in buffers if name.rpartition(".")[2] == "running_mean"]
        self._places = [Places({n: source[n] for n in names}) for source in (params, dense)]
        self._norms = [Places({n: source[n] for n in means}) for source in (buffers, dense)]

    def trace(self, given: Given) -> tuple[Trace, set[str], set[str]]:
        """What happens in a pass: the layers in order, all weights that took part, and those that are an embedding."""
        trace, used, looked_up = Trace(), set[str](), set[str]()
        self._run(given, trace, used=used, looked_up=looked_up)
        trace.done()
        return trace, used, looked_up

    def see(self, given: Given, order: Any, step: Step, take: Callable[[Event], None], *, dense: bool) -> None:
        """Run a model until all of a step was seen."""
        following = Following(order, step, take)
        try:
            self._run(given, following, dense=dense)
        except Enough:
            return
        following.check()

    def outputs(self, given: Given, *, dense: bool) -> Any:
        """What the model returns."""
        return functional_call(self._caller, self._dense, (given,)) if dense else given.call(self.model)

    def _run(
        self,
        given: Given,
        tell: Callable[[Event], None],
        *,
        dense: bool = False,
        used: set[str] | None = None,
        looked_up: set[str] | None = None,
    ) -> None:
        places, norms = self._places[dense], self._norms[dense]
        with torch.no_grad(), Seeing(places, norms, self._convolutions, tell, used, looked_up):
            self.outputs(given, dense=dense)
