"""Weights as int8 codes times scales: as trained quantisation learned them, as they lie in the weights, or rounded."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from prunewald.core.ranking import as_rows
from prunewald.model.modules import plain
from prunewald.pruner import Pruner
from prunewald.quantisation.linear import LinearValues, fit_scale
from prunewald.quantisation.shared import SharedValues

_LEVELS = 127
_SAMPLE = 256  # weights of a row that a scale is tried on before all are
_NEAR = 3e-5  # how far a code times a scale may be from a whole number of scales, by float32's own rounding

Source = nn.Module | Pruner | LinearValues
Origin = Literal["trained", "found", "rounded"]


@dataclass(frozen=True)
class Coded:
    """A weight: `codes` times `scales` is what the model computes with, or nearly where it was rounded.

    `origin`: "trained" by LinearValues; "found": the weights are whole numbers of a scale, as those of a file are that
    was trained so; "rounded" here, without training, at an `error` (of the norm of the weight).
    """

    codes: Tensor
    scales: Tensor
    origin: Origin
    error: float = 0.0

    @property
    def by_row(self) -> Tensor:
        """One scale for each row, (rows,)."""
        return self.scales.reshape(-1).expand(len(self.codes)).contiguous()

    def weight(self) -> Tensor:
        """The weight that codes and scales stand for."""
        return self.codes * self.scales


class Codes:
    """The codes of a model's weights, whatever was given: a model, a Pruner, or the LinearValues that trained it."""

    def __init__(self, source: Source, what: str) -> None:
        self._trained: dict[str, Coded] | None = None
        self._parts: set[str] = set()
        linear = _linear(source, what)
        if linear is not None:
            self.model = plain(linear.pruner.model)
            self._trained = _trained(linear)
            self._parts = {part.param for part in linear.slices.values()} - self._trained.keys()
        elif isinstance(source, Pruner):
            self.model = source.model
        elif isinstance(source, nn.Module):
            self.model = plain(source)
        else:
            raise TypeError(f"{what} takes a model, a Pruner or LinearValues, not {type(source).__name__}")
        first: dict[int, str] = {}
        named = self.model.named_parameters(remove_duplicate=False)
        self._names = {name: first.setdefault(id(param), name) for name, param in named}

    def of(self, name: str, weight: Tensor, *, turned: bool = False) -> Coded | str:
        """The codes of a parameter, as (outputs, inputs); where there are none, why. `turned`: it is the other way."""
        if weight.dtype != torch.float32:
            return f"{str(weight.dtype).removeprefix('torch.')}: only float32 weights run as int8, model.float()"
        if not bool(torch.isfinite(weight).all()):
            return "has NaN or infinite weights"
        name = self._names.get(name, name)  # of tied weights, the first
        if self._trained is None:
            weight = weight.t() if turned else weight
            return found(weight) or rounded(weight)
        if name in self._parts:
            return "only a part of it was quantised in training"
        coded = self._trained.get(name)
        if coded is None:
            return "was not quantised in training: it is no target of LinearValues"
        if turned and coded.scales.numel() > 1:
            return "has a scale for each input, and whole numbers need one for each output: per='target'"
        return replace(coded, codes=coded.codes.t()) if turned else coded


def _linear(source: Source, what: str) -> LinearValues | None:
    if isinstance(source, LinearValues):
        return source
    holdings = source.holdings if isinstance(source, Pruner) else ()
    for one in holdings:
        if isinstance(one, SharedValues):
            raise ValueError(
                f"{what}: this Pruner holds SharedValues, which are no whole numbers of a scale: quantise with "
                "LinearValues in their place, or give the model, pruner.model, to round each row to int8"
            )
    return next((one for one in holdings if isinstance(one, LinearValues)), None)


@torch.no_grad()
def _trained(linear: LinearValues) -> dict[str, Coded]:
    scales, made = linear.scales(), {}
    weights = linear.pruner.targets()
    for name, codes in linear.codes().items():
        part, scale = linear.slices[name], scales[name]
        weight = weights[name].detach()
        if not torch.equal((codes * scale.to(codes.device)).to(weight.dtype), weight):
            raise ValueError(
                f"the weights of {name!r} were changed since LinearValues rounded them, so its codes are not theirs: "
                "make a new LinearValues, or give the model to round it to int8"
            )
        if part.index is None:
            made[part.param] = Coded(codes, scale.to(codes.device, torch.float32), "trained")
    return made


@torch.no_grad()
def found(weight: Tensor) -> Coded | None:
    """The codes of weights that are whole numbers, -127 to 127, of one scale, or of one for each row; else None.

    The scale is the largest that fits: where all codes would share a factor, it is in the scale.
    """
    for rows in (weight.reshape(1, -1), as_rows(weight)):
        scale = _common_scale(rows.to(torch.float64))
        if scale is not None:
            shape = () if len(rows) == 1 else (-1, *[1] * (weight.dim() - 1))
            scales = scale.to(torch.float32).reshape(shape)
            return Coded((weight / scales).round().to(torch.int8), scales, "found")
    return None


def _common_scale(rows: Tensor) -> Tensor | None:
    top = rows.abs().amax(1, keepdim=True)
    scale = torch.ones_like(top)  # of rows that are all zero
    open_ = top[:, 0] > 0
    some = rows[:, torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(0))[:_SAMPLE]]
    for levels in range(1, _LEVELS + 1):
        at = open_.nonzero()[:, 0]
        if not len(at):
            break
        tried = top[at] / levels
        at = at[_whole(some[at], tried)]
        at = at[_whole(rows[at], top[at] / levels)] if len(at) else at
        scale[at] = top[at] / levels
        open_[at] = False
    return None if bool(open_.any()) else scale


def _whole(rows: Tensor, scale: Tensor) -> Tensor:
    steps = rows / scale
    near: Tensor = ((steps - steps.round()).abs() <= _NEAR * steps.abs().clamp(min=1)).all(1)
    return near


@torch.no_grad()
def rounded(weight: Tensor) -> Coded:
    """Each row rounded to -127 ... 127 times the scale that loses least."""
    scales = fit_scale(weight, _LEVELS, by_row=True).to(torch.float32)
    codes = (weight / scales).round().clamp(-_LEVELS, _LEVELS).to(torch.int8)
    error = float((codes * scales - weight).norm() / weight.norm().clamp(min=1e-12))
    return Coded(codes, scales, "rounded", error)
