"""Dropout that shrinks with the network: fewer connections need less of it."""

from collections.abc import Mapping
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from prunewald.pruner import Pruner

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# The rate a module was given, and the one it was last set to: a second run does not rescale the first one's again.
_rescaled: WeakKeyDictionary[nn.Module, tuple[float, float]] = WeakKeyDictionary()


class Dropouts:
    """The dropout modules of a model, each with the weights of the layer before it, whose outputs it drops.

    Han's C_i = N_i N_(i-1) counts the connections into the N_i neurons of a layer, all of them and those that are kept.
    `start` has for each module the rate that is for all of them.
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
            _check(layer_of, dropouts, [part.param.rpartition(".")[0] for part in pruner.slices])
        self._modules = [(modules[name], layers[layer]) for name, layer in layer_of.items()]
        self.start = [_given(module) for module, _ in self._modules]

    def rescale_(self) -> None:
        """Set each rate to that of the weights which are left; where the layer is no target, it stays."""
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


def _given(module: Any) -> float:
    """The rate of a module for all weights: what it is, unless that is what it was rescaled to."""
    given, ours = _rescaled.get(module, (None, None))
    return float(module.p if given is None or module.p != ours else given)


def _layers(pruner: Pruner, modules: Mapping[str, nn.Module]) -> dict[str, dict[str, int]]:
    """The modules with weights, targets or matrices that are no norm's: how many, by parameter name."""
    names = {id(param): name for name, param in pruner.model.named_parameters()}
    targets = {part.param for part in pruner.slices}
    found = {}
    for name, module in modules.items():
        own = {names[id(param)]: param for param in module.parameters(recurse=False)}
        norm = "Norm" in type(module).__name__
        weights = {n: p.numel() for n, p in own.items() if n in targets or (p.dim() >= 2 and not norm)}
        if weights:
            found[name] = weights
    return found


def _before(name: str, modules: list[str], layers: Mapping[str, object]) -> str | None:
    """The last layer before a module, in the order in which the model holds them."""
    return next((near for near in reversed(modules[: modules.index(name)]) if near in layers), None)
