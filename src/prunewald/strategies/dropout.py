"""Dropout that shrinks with the network: fewer connections need less of it.  Han et al. (2015), section 3.2."""

from collections.abc import Mapping
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from prunewald.pruner import Pruner

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# The rate a module had for the whole network, and the one it was last set to here: where a second run finds the latter,
# it starts from the former, and does not lower the rate twice.
_rescaled: WeakKeyDictionary[nn.Module, tuple[float, float]] = WeakKeyDictionary()


class Dropouts:
    """Lowers the rates of a model's dropout modules by D = D_start · sqrt(kept / all), as the network loses weights.

    "kept" and "all" count the weights of the layer before the module, whose outputs it drops. Han's C_i = N_i N_(i-1)
    are the same counts: the connections into the N_i neurons of a layer, those that are kept and all of them. `start`
    has the rate of each module for the network with all its weights.
    """

    def __init__(self, pruner: Pruner, layer_of: Mapping[str, str] | None) -> None:
        self._pruner = pruner
        modules: dict[str, Any] = dict(pruner.model.named_modules())
        dropouts = [name for name, module in modules.items() if isinstance(module, _DROPOUTS)]
        layers = _layers(pruner, modules)
        if layer_of is None:
            if not dropouts:
                raise ValueError(f"dropout=True, but {type(pruner.model).__name__} has no dropout module to rescale")
            before = {name: _before(name, list(modules), layers) for name in dropouts}
            layer_of = {name: layer for name, layer in before.items() if layer is not None}
        else:
            _check(layer_of, dropouts, [target.param.rpartition(".")[0] for target in pruner.slices])
        self._modules = [(modules[name], layers[layer]) for name, layer in layer_of.items()]
        self.start = [_start_rate(module) for module, _ in self._modules]

    def rescale_(self) -> None:
        """Set each rate by the weights that are left; where the layer is no target, all are left and the rate stays."""
        masks = self._pruner.masks
        for (module, weights), rate in zip(self._modules, self.start, strict=True):
            kept = sum(int(masks[name].sum()) if name in masks else count for name, count in weights.items())
            module.p = rate * sqrt(kept / sum(weights.values()))
            _rescaled[module] = rate, module.p


def _check(layer_of: Mapping[str, str], dropouts: list[str], layers: list[str]) -> None:
    for name, layer in layer_of.items():
        if name not in dropouts or layer not in layers:
            raise ValueError(
                f"dropout={{{name!r}: {layer!r}}}: give a dropout module, of {dropouts}, and the layer before it, "
                f"of {list(dict.fromkeys(layers))}"
            )


def _start_rate(module: Any) -> float:
    """The rate of a module before any pruning: the one it has, unless an earlier run lowered it to that."""
    start, lowered = _rescaled.get(module, (None, None))
    return float(module.p if start is None or module.p != lowered else start)


def _layers(pruner: Pruner, modules: Mapping[str, nn.Module]) -> dict[str, dict[str, int]]:
    """By the name of each layer, how many weights its parameters hold; a layer has targets, or matrices and no norm."""
    names = {id(param): name for name, param in pruner.model.named_parameters()}
    targets = {target.param for target in pruner.slices}
    found = {}
    for name, module in modules.items():
        own = {names[id(param)]: param for param in module.parameters(recurse=False)}
        norm = "Norm" in type(module).__name__
        weights = {n: p.numel() for n, p in own.items() if n in targets or (p.dim() >= 2 and not norm)}
        if weights:
            found[name] = weights
    return found


def _before(name: str, modules: list[str], layers: Mapping[str, object]) -> str | None:
    """The last layer before a module, in the order in which the model holds them; None if it comes first."""
    return next((near for near in reversed(modules[: modules.index(name)]) if near in layers), None)
