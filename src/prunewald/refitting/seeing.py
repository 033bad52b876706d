"""Seeing which weights a model multiplies with what, while it computes: one look at every call of a torch function.

Hooks on modules would not do: attention never calls its output projection, experts are parts of one parameter.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from prunewald.model.inputs import padding, rows_met
from prunewald.model.layouts import Layout
from prunewald.refitting.units import Places, Unit

PIECE = 1 << 24  # so many numbers of what a convolution meets are laid out at a time


@dataclass(frozen=True)
class Product:
    """A layer's weight has met an input: the rows of what it met, and what it gave, by group of outputs."""

    unit: Unit
    x: Tensor
    out: Tensor
    module: _ConvNd | None = None  # of a convolution
    shift: Tensor | None = None  # a bias that is no parameter, or a part of one that cannot be told

    def met(self) -> Iterator[tuple[slice, Tensor]]:
        """Pieces of the inputs, (groups, n, d), each with where its n rows are among those of `given`."""
        if self.module is None:
            yield slice(None), self.x.reshape(1, -1, self.x.shape[-1])
            return
        x = self._batched(self.x)
        if self.module.padding_mode != "zeros":  # this has come already, and comes again
            x = F.pad(x, [-side for side in padding(self.module)])
        size: Any = list(self.out.shape[-len(self.module.kernel_size) :])
        args = (size,) if isinstance(self.module, _ConvTransposeNd) else ()
        positions, row = math.prod(size), self.module.weight.numel() // self.module.out_channels
        step = max(1, PIECE // (positions * self.module.groups * row))
        for start in range(0, len(x), step):
            rows = rows_met(self.module, (x[start : start + step], *args), {})
            yield slice(start * positions, (start + step) * positions), rows

    def given(self, out: Tensor) -> Tensor:
        """What a call like this gave, as (groups, n, outputs of a group)."""
        if self.module is None:
            return out.reshape(1, -1, out.shape[-1])
        rows = self._batched(out).flatten(2).unflatten(1, (self.unit.groups, -1))
        by_group: Tensor = rows.permute(1, 0, 3, 2).flatten(1, 2)
        return by_group

    def copied(self, *, x: bool, out: bool) -> "Product":
        """The same with a copy of what it met, of what it gave, or of both, and nothing of the other."""
        none = self.x.new_empty(0)
        return replace(self, x=self.x.clone() if x else none, out=self.out.clone() if out else none)

    def _batched(self, x: Tensor) -> Tensor:
        assert self.module is not None
        return x if x.dim() == len(self.module.kernel_size) + 2 else x.unsqueeze(0)


@dataclass(frozen=True)
class Normalised:
    """A BatchNorm, by its name, has met an input."""

    name: str
    x: Tensor
    out: Tensor

    def copied(self, *, x: bool, out: bool) -> "Normalised":
        """The same with a copy of what it met, of what it gave, or of both, and nothing of the other."""
        none = self.x.new_empty(0)
        return replace(self, x=self.x.clone() if x else none, out=self.out.clone() if out else none)


Event = Product | Normalised
Events: TypeAlias = Sequence[Event]


class Seeing(TorchFunctionMode):
    """Tells of every product of a weight with an input, and of every BatchNorm, while it is entered.

    `places` are the weights and biases to look for, `norms` the running means. `used`, where it is given, takes the
    names of weights that something else was done with, and `looked_up` of those that are an embedding's. `early` it
    tells of plain products before they are computed, and not what they give.
    """

    def __init__(
        self,
        places: Places,
        norms: Places,
        convolutions: Mapping[str, _ConvNd],
        tell: Callable[[Event], None],
        used: set[str] | None = None,
        looked_up: set[str] | None = None,
        *,
        early: bool = False,
    ) -> None:
        super().__init__()
        self._early = early
        self._places, self._norms, self._convolutions, self._tell = places, norms, convolutions, tell
        self._used, self._looked_up = used, looked_up

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what was called, and tell of it."""
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return _attention(*args, **kwargs)
        look = _LOOKS.get(func)
        if self._early and look in _PLAIN and args:
            assert look is not None
            for event in look(self, args[0], *args, **kwargs):
                self._tell(event)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if self._used is not None and isinstance(out[0] if isinstance(out, tuple) and out else out, Tensor):
            self._note(func, args, kwargs)
        if look is None and isinstance(func, torch._ops.OpOverloadPacket):
            look = _MADE.get(str(func))
        for event in look(self, out, *args, **kwargs) if look else ():
            self._tell(event)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any) -> None:
        assert self._used is not None
        flat = [one for arg in (*args, *kwargs.values()) for one in (arg if isinstance(arg, list | tuple) else [arg])]
        names = self._places.within(one for one in flat if isinstance(one, Tensor))
        self._used.update(names)
        if self._looked_up is not None and func is F.embedding:
            self._looked_up.update(names)

    # ---- the products there are ----------------------------------------------------------------------------------

    def linear(self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Events:
        """X @ weight.T + bias."""
        found = self._places.turned(weight) if weight.dim() == 2 else None
        if found is None:
            return ()
        span, turned = found
        held = None if bias is None else self._places.find(bias)
        shift = bias if held is None else None
        return (Product(Unit(span, Layout(transposed=turned), bias=held), input, out, shift=shift),)

    def addmm(
        self, out: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, **_: Any
    ) -> Events:
        """Input + mat1 @ mat2."""
        return self.linear(out, mat1, mat2.t(), input) if beta == alpha == 1 else ()

    def matmul(self, out: Tensor, input: Tensor, other: Tensor, **_: Any) -> Events:
        """Input @ other, also with a stack of matrices that each meet inputs of their own."""
        if not isinstance(other, Tensor) or other.dim() != input.dim() == 3:
            return self.linear(out, input, other.t()) if isinstance(other, Tensor) and other.dim() == 2 else ()
        return self._stacked(other, [(input[at], out[at]) for at in range(len(other))])

    def grouped(self, out: Tensor, input: Tensor, weight: Tensor, offs: Tensor | None = None, **_: Any) -> Events:
        """Rows of the input in a row of groups, each @ a matrix of a stack; `offs` are where the groups end."""
        if offs is None or input.dim() != 2 or weight.dim() != 3:
            return ()
        ends = offs.tolist()
        return self._stacked(weight, [(input[a:b], out[a:b]) for a, b in pairwise([0, *ends])])

    def _stacked(self, weight: Tensor, calls: Sequence[tuple[Tensor, Tensor]]) -> Events:
        found = self._places.turned(weight.mT)
        if found is None or found[0].stop is not None:
            return ()
        units = (
            Unit(replace(found[0], start=at, stop=at + 1, single=True), Layout(transposed=found[1]))
            for at in range(len(calls))
        )
        return [Product(unit, x, out) for unit, (x, out) in zip(units, calls, strict=True) if x.numel()]

    def convolution(
        self, out: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any
    ) -> Events:
        """A convolution of any kind, of which the module knows the rest."""
        span = self._places.find(weight)
        if span is None or span.param not in self._convolutions or span.stop is not None:
            return ()
        module = self._convolutions[span.param]
        turned = Layout(transposed=True, groups=module.groups) if isinstance(module, _ConvTransposeNd) else Layout()
        held = None if bias is None else self._places.find(bias)
        shift = bias if held is None else None
        return (Product(Unit(span, turned, module.groups, held), input, out, module, shift),)

    def batch_norm(self, out: Tensor, input: Tensor, running_mean: Tensor | None, *_: Any, **__: Any) -> Events:
        """A BatchNorm that has running statistics."""
        span = None if running_mean is None else self._norms.find(running_mean)
        return () if span is None else (Normalised(span.param.rpartition(".")[0], input, out),)


_PLAIN = (Seeing.linear, Seeing.addmm)
_LOOKS: dict[Any, Callable[..., Events]] = {
    F.linear: Seeing.linear,
    torch.addmm: Seeing.addmm,
    torch.matmul: Seeing.matmul,
    torch.mm: Seeing.matmul,
    torch.bmm: Seeing.matmul,
    Tensor.bmm: Seeing.matmul,
    Tensor.matmul: Seeing.matmul,
    Tensor.mm: Seeing.matmul,
    Tensor.__matmul__: Seeing.matmul,
    F.batch_norm: Seeing.batch_norm,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), Seeing.convolution),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), Seeing.convolution),
}
if "_grouped_mm" in vars(torch):  # from torch 2.8 on
    _LOOKS[torch._grouped_mm] = Seeing.grouped
_MADE = {"transformers.grouped_mm_fallback": Seeing.grouped}  # operators that others register, by name
# torch's own attention asks first whether anything wants to see it as a whole: this one does not ask, so that what it
# calls can be seen.
_attention = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)


def convolutions(module: nn.Module) -> list[_ConvNd]:
    """Every convolution in a module."""
    return [one for one in module.modules() if isinstance(one, _ConvNd)]
