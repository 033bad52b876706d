"""Weights of a few bits: whole numbers times a scale."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from prunewald.core.ranking import as_rows
from prunewald.model.slices import Slice
from prunewald.pruner import Pruner
from prunewald.quantisation.quantised import Quantised, by_target, check_pruner
from prunewald.util.arguments import one_of
from prunewald.util.tensors import accumulator
from prunewald.util.trees import copied

_SHARES = 100  # clipping points that are tried for a scale


class LinearValues(Quantised):
    """The model computes with weights of a few bits, and its loop trains them in full precision, out of sight.

    Every weight of a target is a whole number of -(2^(bits-1) - 1) to 2^(bits-1) - 1 times the target's scale. A step
    moves the full values by the gradient at the rounded ones (the straight-through estimator), also within
    `step(closure)`; then they are rounded anew. Zeros stay zero, and small survivors may round to it.

    - `pruner`: a Pruner with its optimizers, after any strategy; a surgery has to be finished.
    - `bits`: 2 to 8, or a dict by target (names, modules, globs; the others stay free).
    - `per`: one scale for each "target", or for each "row" of it. It is the one with the least squared error now, and
      stays.
    """

    def __init__(
        self, pruner: Pruner, bits: int | Mapping[str, int] = 8, *, per: Literal["target", "row"] = "target"
    ) -> None:
        check_pruner(pruner, type(self).__name__)
        one_of("per", per, ("target", "row"))
        chosen = by_target(pruner, "bits", bits, 8)
        super().__init__(pruner, chosen)
        self.bits, self.per = bits, per
        self._levels = {name: 2 ** (chosen[name] - 1) - 1 for name in self.slices}
        weights = {name: self._weight(part) for name, part in self.slices.items()}
        self._scales = {n: fit_scale(w, self._levels[n], by_row=per == "row") for n, w in weights.items()}
        self._full: dict[str, Tensor] = {}  # the values in full precision, while the model has the rounded ones
        self.settle_slices_(self.slices.values())
        pruner.hold(self)

    def codes(self) -> dict[str, Tensor]:
        """By target, whole numbers (int8) which times the scale are the weights."""
        return {name: self._rounded(name, self._weight(part)) for name, part in self.slices.items()}

    def scales(self) -> dict[str, Tensor]:
        """By target, one scale, or one for each row, in a shape that multiplies the codes."""
        return {name: scale.clone() for name, scale in self._scales.items()}

    @property
    def sparsity(self) -> float:
        """The share of its targets' weights that is zero: pruned, or rounded to it."""
        codes = self.codes().values()
        return 1 - sum(int(torch.count_nonzero(code)) for code in codes) / sum(code.numel() for code in codes)

    def end_(self) -> None:
        """Drop the full values: the weights stay rounded."""
        self._full = {}

    def state_dict(self) -> dict[str, Any]:
        """Full values and scales: to go on exactly, beside the states of model, optimizer and Pruner."""
        return {"full": dict(self._full), "scales": self.scales()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, of the same targets; the weights become what it says."""
        self._check_state(state, ("full", "scales"))
        for name, scale in state["scales"].items():
            if scale.shape != self._scales[name].shape:
                raise ValueError(
                    f"the saved scale of {name!r} has shape {tuple(scale.shape)}, and per={self.per!r} needs "
                    f"{tuple(self._scales[name].shape)}"
                )
        self._scales = copied(state["scales"])
        with torch.no_grad():
            for name, part in self.slices.items():
                part.put_(self._params[part.param], state["full"][name].to(self._params[part.param]))
                self._full.pop(name, None)
        self.settle_slices_(self.slices.values())

    def __repr__(self) -> str:
        zero = f"{self.sparsity:.2%} zero, {self.pruner.sparsity:.2%} pruned"
        return f"LinearValues(bits={self.bits!r}, per={self.per!r}: {len(self.slices)} targets, {zero})"

    # ---- a step --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def ready_slices_(self, slices: Iterable[Slice]) -> None:
        """Bring the full values in, except where a weight was changed since they were rounded: pruned, or loaded."""
        for part in slices:
            if (full := self._full.pop(part.name, None)) is not None:
                weight = self._weight(part)
                same = weight == self._quantised(part.name, full).to(weight)
                part.put_(self._params[part.param], torch.where(same, full.to(weight), weight))

    @torch.no_grad()
    def settle_slices_(self, slices: Iterable[Slice]) -> None:
        """Put the full values away, and round."""
        for part in slices:
            if part.name not in self._full:
                self._full[part.name] = full = self._weight(part).clone()
                part.put_(self._params[part.param], self._quantised(part.name, full))

    def _rounded(self, name: str, weight: Tensor) -> Tensor:
        return _round(weight, self._scale(name, weight), self._levels[name])

    def _quantised(self, name: str, weight: Tensor) -> Tensor:
        return (self._rounded(name, weight) * self._scale(name, weight)).to(weight.dtype)

    def _scale(self, name: str, weight: Tensor) -> Tensor:
        return self._scales[name].to(weight.device, accumulator(weight))


@torch.no_grad()
def fit_scale(weight: Tensor, levels: int, *, by_row: bool = False) -> Tensor:
    """The scale at which rounding to -levels ... levels times it loses least: of 100 clipping points, the best."""
    rows = as_rows(weight) if by_row else weight[weight != 0].reshape(1, -1)
    rows = rows.to(accumulator(weight))
    shape = (-1, *[1] * (weight.dim() - 1)) if by_row and weight.dim() > 1 else ()
    if not rows.numel():
        return rows.new_ones(()).reshape(shape)
    top = rows.abs().amax(1, keepdim=True)
    best, least = torch.ones_like(top), torch.full_like(top, torch.inf)
    for share in range(_SHARES, 0, -1):
        scale = torch.where(top > 0, top * (share / _SHARES / levels), 1.0)
        error = (_round(rows, scale, levels) * scale - rows).square().sum(1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best.reshape(shape)


def _round(weight: Tensor, scale: Tensor, levels: int) -> Tensor:
    # As integers, so that no zero has a sign.
    return (weight / scale).round().clamp_(-levels, levels).to(torch.int8)
