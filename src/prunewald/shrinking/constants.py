"""What is constant in a model: which values no input changes, since all weights before them are zero.

Beside each tensor of a forward pass goes a mask, True where a value may vary with the inputs. A product varies where
what varies meets what may be other than zero. So what is found holds for all inputs that go the same way through the
model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from prunewald.model.flow import Meeting, Put, tensors
from prunewald.model.moving import MOVED, VIEWS
from prunewald.model.rules import is_pointwise, is_spatial


@dataclass(frozen=True)
class Reading:
    """What a layer reads in one call: of each position of an axis of its weight, whether it is constant, and the value.

    A value that is not the same at all places, or in all examples, is NaN.
    """

    weight: str
    axis: int
    bias: str | None
    constant: Tensor
    value: Tensor


class Constants:
    """Looks on while a model runs, and notes what its layers read that is constant."""

    def __init__(self, alive: Mapping[Tensor, Tensor]) -> None:
        self._params = alive
        self.readings: list[Reading] = []

    def start(self, inputs: Sequence[Tensor]) -> None:
        """Inputs vary; of parameters it is known which of their values may be other than zero."""
        self.readings.clear()
        self._varies = WeakTensorKeyDictionary()
        self._alive = WeakTensorKeyDictionary()
        for param, mask in self._params.items():
            self._alive[param] = mask
        for x in inputs:
            self._varies[x] = torch.ones_like(x, dtype=torch.bool)

    def meets(self, meeting: Meeting) -> None:
        """Note what a layer reads."""
        x, at = meeting.x.detach(), meeting.x_axis
        rows = x.movedim(at, 0).flatten(1)
        varies = self._varies.get(meeting.x)
        constant = ~varies.movedim(at, 0).flatten(1).any(1) if varies is not None else torch.ones(len(rows)).bool()
        eps = torch.finfo(x.dtype).eps if x.is_floating_point() else 0
        same = ((rows - rows[:, :1]).abs() <= 8 * eps * rows[:, :1].abs()).all(1)  # kernels round at the end otherwise
        value = torch.where(same.cpu(), rows[:, 0].double().cpu(), torch.nan)
        self.readings.append(Reading(meeting.weight, meeting.axis, meeting.bias, constant.cpu(), value))

    def before(self, kind: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put | None:
        """Carry the masks on through an operation."""
        given = tensors((args, kwargs))
        varying = any(x in self._varies for x in given)
        if not varying and not any(x in self._alive for x in given):
            return None
        if kind in MOVED or kind in ("clone", "detach", "alias", "_to_copy", "lift_fresh"):
            return self._moved(kind, func, args, kwargs)
        if not varying:
            return None
        rule = _RULES.get(kind) or (_pooled if is_spatial(kind) else None)
        if rule is None and is_pointwise(kind, func):
            rule = _either
        mask = None if rule is None else rule(self, func, args, kwargs)
        return lambda out: self._put(out, mask, func)

    def varies(self, x: Tensor) -> Tensor:
        """Where a tensor varies with the inputs."""
        found: Tensor | None = self._varies.get(x)
        return torch.zeros_like(x, dtype=torch.bool) if found is None else found

    def alive(self, x: Tensor) -> Tensor:
        """Where a tensor may be other than zero, for some inputs."""
        found: Tensor | None = self._alive.get(x)
        return self.varies(x) | (x != 0) if found is None else found

    def _put(self, out: Any, mask: Tensor | None, func: Any) -> None:
        first = True
        for x in tensors(out):
            own = mask if mask is not None and first and mask.shape == x.shape else None
            self._varies[x] = torch.ones((), dtype=torch.bool).to(x.device).expand(x.shape) if own is None else own
            first = False
            if func._schema.is_mutable and x._base is not None:  # a write to a part of something
                self._varies[x._base] = torch.ones_like(x._base, dtype=torch.bool)

    def _moved(self, kind: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
        source = args[0]
        chosen = any(x in self._varies for x in tensors((args[1:], kwargs)))  # by an index that depends on the inputs
        masks = [(table, table[source]) for table in (self._varies, self._alive) if source in table]

        def put(out: Any) -> None:
            if chosen:
                self._put(out, None, func)
                return
            for table, mask in masks:
                found = _move(kind, func, mask, args, kwargs, out)
                for x, own in zip(tensors(out), tensors(found), strict=True):
                    table[x] = own

        return put


def _move(kind: str, func: Any, mask: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Any:
    """A mask, moved as the tensor it is of."""
    if kind in VIEWS:
        return mask.reshape(out.shape)
    if kind in ("clone", "detach", "alias", "_to_copy", "lift_fresh"):
        return mask
    if kind == "constant_pad_nd":
        return func(mask.float(), args[1], 0.0) > 0
    if "shuffle" in kind:
        return func(mask.float(), *args[1:], **kwargs) > 0
    return func(mask, *args[1:], **kwargs)


Masks = Callable[[Constants, Any, tuple[Any, ...], Mapping[str, Any]], Tensor | None]


def _either(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Position by position: where anything varies."""
    found: Tensor | None = None
    for x in tensors((args, kwargs)):
        mask = own.varies(x)
        found = mask if found is None else found | mask
    assert found is not None
    return found


def _times(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    a, b = args[:2]
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return own.varies(a if isinstance(a, Tensor) else b)
    return own.varies(a) & own.alive(b) | own.alive(a) & own.varies(b)


def _gated(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """One half gates the other, by what is never zero."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    varies, alive = (own.varies(args[0]).chunk(2, dim), own.alive(args[0]).chunk(2, dim))
    return varies[0] | alive[0] & varies[1]


def _product(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Where a product of matrices varies: some varying factor meets one that may be other than zero."""
    bias, a, b = (None, *args) if len(args) == 2 else args

    def counted(x: Tensor, y: Tensor) -> Tensor:
        return x.float() @ y.float() > 0

    found = counted(own.varies(a), own.alive(b)) | counted(own.alive(a), own.varies(b))
    return found if bias is None else found | own.varies(bias)


def _convolution(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    x, weight, _, *rest = args
    if weight in own._varies:
        return None
    found: Tensor = func(own.varies(x).float(), own.alive(weight).float(), None, *rest) > 0
    return found


def _batch_norm(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    x, weight = args[:2]
    mask = own.varies(x)
    if any(argument is True for argument in args[5:]):  # statistics of the batch itself
        mask = mask.movedim(1, 0).flatten(1).any(1).reshape([1, -1] + [1] * (x.dim() - 2)).expand(x.shape)
    return mask if weight is None else mask & own.alive(weight).reshape([1, -1] + [1] * (x.dim() - 2))


def _group_norm(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    x, weight = args[:2]
    by_group = own.varies(x).reshape(len(x), args[6], -1)
    mask: Tensor = by_group.any(2, keepdim=True).expand(by_group.shape).reshape(x.shape)
    return mask if weight is None else mask & own.alive(weight).reshape([1, -1] + [1] * (x.dim() - 2))


def _pooled(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    first: Tensor = tensors(func(own.varies(args[0]).float(), *args[1:], **kwargs))[0]
    return first > 0


def _joined(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    found: Tensor = func([own.varies(x) for x in args[0]], *args[1:], **kwargs)
    return found


def _lookup(own: Constants, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    table, at = args[:2]
    return own.alive(table).any(0).expand(*at.shape, -1)


_RULES: dict[str, Masks] = {
    "mul": _times,
    "glu": _gated,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv"), _product),
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    **dict.fromkeys(("mean", "sum", "amax"), _pooled),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    "native_group_norm": _group_norm,
    "embedding": _lookup,
}
