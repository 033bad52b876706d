"""The walk through a model: layer by layer, in the order of their computation, each refitted before the next is met."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prunewald.distributed import listed
from prunewald.pruning.refitted import LayerRefit
from prunewald.refitting.feed import Given
from prunewald.refitting.fitting import Matrix, fit
from prunewald.refitting.gathering import Aim, Gathering
from prunewald.refitting.kept import Kept
from prunewald.refitting.norms import Moments, measured
from prunewald.refitting.order import Step, pattern_of
from prunewald.refitting.originals import Originals
from prunewald.refitting.passes import Passes
from prunewald.refitting.sums import Met, Sums
from prunewald.refitting.units import Span, Unit
from prunewald.util.memory import give_back

UNCHANGED = "no better on the examples held back: left as it was"
_NAN = (
    "{}: NaN or infinite values come into it, or out of the dense one: look at the data, and at both models in eval "
    "mode; the model is as it was"
)
RARE = "no example, or hardly one, came by it: left as it was"


@dataclass(frozen=True)
class Setting:
    """What a walk is to do: the targets with their masks, the ridges to choose from, and whose inputs are met."""

    masks: Mapping[str, Tensor]
    dense: Originals
    ridges: Sequence[float]
    dense_inputs: bool = False


class Walk:
    """Refits a model, step by step."""

    def __init__(self, model: nn.Module, units: Iterable[Unit], setting: Setting, kept: Kept) -> None:
        self._setting, self._kept = setting, kept
        self._modules = dict(model.named_modules())
        self._params = dict(model.named_parameters())
        biases = Counter(unit.bias for unit in units if unit.bias)
        self._shared = {bias for bias, count in biases.items() if count > 1}
        self.short: list[str] = []  # layers with fewer positions than a row has survivors

    def gathering(self, step: Step, passes: Passes, order: Sequence[Hashable]) -> Gathering:
        """What is to be summed up for the layers of a step.

        Where several layers meet the same, or one has more outputs than inputs, products of inputs are fewer.
        """
        units = [key for key in step.keys if isinstance(key, Unit)]
        shapes = [unit.matrix(self._setting.masks[unit.span.param]).shape for unit in units]
        linear = all(self._params[unit.span.param].dim() == 2 for unit in units)
        once = len(units) == len(step.keys) == step.calls
        fewer = bool(shapes) and shapes[0][1] <= sum(shape[0] for shape in shapes)
        crosswise = linear and once and fewer and not self._setting.dense_inputs
        return Gathering(passes, order, step, crosswise=crosswise, dense_inputs=self._setting.dense_inputs)

    @torch.no_grad()
    def take(self, gathering: Gathering, feed: Iterable[Given], aims: deque[Aim] | None = None) -> list[LayerRefit]:
        """Refit the layers of a step, after passes over all that is fed to the model, or to its part."""
        step = gathering.step
        gathering.over(feed, aims)
        if isinstance(step.keys[0], str):
            return [self._normalise(step.keys[0], *gathering.moments)]
        units = listed(list(gathering.units))
        rows = []
        for unit in units:
            give_back()
            fitted, held = gathering.units.pop(unit, (Sums(Met()), Sums(Met())))
            dense = self._dense(unit)
            for sums in (fitted, held):
                sums.reduced(dense, aimed=not step.routed, crosswise=gathering.crosswise)
            rows.append(self._refit(unit, fitted, held))
        return rows + (self._unmet(step, units) if step.routed else [])

    def _refit(self, unit: Unit, fitted: Sums, held: Sums) -> LayerRefit:
        """Refit one weight, and write it to the model."""
        count = fitted.met.count
        if not (fitted.finite and held.finite):
            raise ValueError(_NAN.format(repr(unit.name)))
        if not (count and held.met.count):
            return LayerRefit(unit.name, count, (), None, None, RARE)
        matrix = self._matrix(unit)
        most = int(matrix.mask.sum(1).max()) if matrix.mask.numel() else 0
        if count < most:
            self.short.append(unit.name)
        found = fit(matrix, fitted, held, self._setting.ridges)
        if not found.after < found.before:
            return LayerRefit(unit.name, count, (), found.before, found.before, UNCHANGED)
        self._write(unit, matrix, found.weight)
        return LayerRefit(unit.name, count, found.ridges, found.before, found.after)

    def _unmet(self, step: Step, units: Iterable[Unit]) -> list[LayerRefit]:
        """The experts of a step that no example came by."""
        met = {unit.span.name for unit in units}
        named = [name for name in self._setting.masks if pattern_of(name) == step.keys[0]]
        stacks = {name: len(self._params[name]) for name in named if self._params[name].dim() == 3}
        spans = [Span(name) for name in named if name not in stacks]
        spans += [Span(name, at, at + 1, single=True) for name, count in stacks.items() for at in range(count)]
        return [LayerRefit(span.name, 0, (), None, None, RARE) for span in spans if span.name not in met]

    def _matrix(self, unit: Unit) -> Matrix:
        weight = unit.matrix(self._params[unit.span.param].detach())
        mask = unit.matrix(self._setting.masks[unit.span.param])
        if unit.bias is None:
            return Matrix(weight, mask, None)
        bias = unit.bias.take(self._params[unit.bias.param].detach())
        return Matrix(torch.cat([weight, bias.to(weight).unsqueeze(1)], 1), mask, self._free(unit.bias, bias, mask))

    def _free(self, span: Span, bias: Tensor, mask: Tensor) -> Tensor:
        """Where a bias may change: not where it is pruned, alone or with all of its row, nor where others share it."""
        if span in self._shared:
            return torch.zeros_like(bias, dtype=torch.bool)
        free = mask.any(1) | (bias != 0)
        return free & span.take(self._setting.masks[span.param]) if span.param in self._setting.masks else free

    def _dense(self, unit: Unit) -> Tensor:
        """The dense rows with their bias, by group."""
        names = [unit.span.param] if unit.bias is None else [unit.span.param, unit.bias.param]
        dense = self._setting.dense.read({name: self._params[name] for name in names})
        weight = unit.matrix(dense[unit.span.param])
        bias = weight.new_zeros(len(weight)) if unit.bias is None else unit.bias.take(dense[unit.bias.param])
        rows = torch.cat([weight, bias.to(weight).unsqueeze(1)], 1)
        by_group: Tensor = rows.unflatten(0, (unit.groups, -1))
        return by_group

    def _write(self, unit: Unit, matrix: Matrix, found: Tensor) -> None:
        width = matrix.mask.shape[1]
        self._kept.keep(unit.span.param)
        unit.put_(self._params[unit.span.param].detach(), found[:, :width])
        if unit.bias is not None and matrix.free is not None:
            self._kept.keep(unit.bias.param)
            bias = unit.bias.take(self._params[unit.bias.param].detach())
            bias.copy_(torch.where(matrix.free, found[:, width].to(bias), bias))

    def _normalise(self, name: str, fitted: Moments, held: Moments) -> LayerRefit:
        """Recalibrate one BatchNorm."""
        one, other = fitted.reduced(), held.reduced()
        if not bool((one.isfinite() & other.isfinite()).all()):
            raise ValueError(_NAN.format(repr(name)))
        norm = self._modules[name]
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
        found = measured(norm, one, other)
        positions = int(one[0, 0])
        if not found.after < found.before:
            return LayerRefit(name, positions, (), found.before, found.before, UNCHANGED)
        for leaf, value in (("running_mean", found.mean), ("running_var", found.var)):
            self._kept.keep(f"{name}.{leaf}".lstrip("."))
            norm.get_buffer(leaf).copy_(value)
        return LayerRefit(name, positions, (), found.before, found.after)
