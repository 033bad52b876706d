"""Operations that move values about: what comes from where is asked of the operation itself, by moving coordinates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunewald.model.coupling import Ids
from prunewald.model.flow import Axis, Flow, Put, kind_of

_VIEWS = "view _unsafe_view reshape _reshape_copy _reshape_alias"
_MOVED = "t transpose permute unsqueeze squeeze select slice split split_with_sizes unsafe_split unbind chunk flip roll"
_MOVED += " narrow index index_select expand repeat unfold movedim diagonal constant_pad_nd pixel_shuffle"
_MOVED += " pixel_unshuffle"
VIEWS = frozenset(_VIEWS.split())
MOVED = VIEWS | frozenset(_MOVED.split())


def moved(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """What comes from where is asked of the operation itself, by moving coordinates."""
    source: Tensor = args[0]
    kind, labels, name = kind_of(func), flow.labels(source), flow.parameter(source)

    def turned(out: Any) -> None:
        probe = func(torch.empty(tuple(range(2, 2 + source.dim())), device="meta"), *args[1:], **kwargs)
        flow.put(out, [labels[size - 2] for size in probe.shape])
        flow.own(out, name)

    if kind in ("t", "transpose", "permute"):  # these only change the order of axes
        return turned

    def put(out: Any) -> None:
        several = [out] if isinstance(out, Tensor) else list(out)
        found: list[list[Axis]] = [[None] * x.dim() for x in several]
        for at, ids in enumerate(labels):
            if ids is None or (source.shape[at] == 1 and len(several) == 1 and kind in ("expand", "squeeze")):
                continue
            coordinates = _coordinates(func, kind, source, at, args, kwargs, out)
            for own, where in zip(found, coordinates, strict=True):
                _carry(flow, ids, at, where, own)
        if kind == "expand":
            grown = [None] * (out.dim() - source.dim()) + list(source.shape)
            for at, (old, new) in enumerate(zip(grown, out.shape, strict=True)):
                if old in (None, 1) and new > 1:
                    found[0][at] = flow.units.fresh(new, loose=True)
        for x, own in zip(several, found, strict=True):
            flow.put(x, own)
            flow.own(x, name)

    return put


def _coordinates(
    func: Any, kind: str, source: Tensor, at: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> list[Tensor]:
    """Where along an axis of the source each position of the results comes from; -1 where from nowhere."""
    shape = [1] * source.dim()
    shape[at] = source.shape[at]
    line = torch.arange(source.shape[at], dtype=torch.float32 if "shuffle" in kind else torch.int32)
    whole = line.to(source.device).view(shape).expand(source.shape)
    if kind in VIEWS:
        return [whole.reshape(out.shape)]
    if kind == "constant_pad_nd":
        return [func(whole, args[1], -1)]
    moved = func(whole, *args[1:], **kwargs)
    return [moved] if isinstance(moved, Tensor) else list(moved)


def _carry(flow: Flow, ids: Ids, at: int, where: Tensor, found: list[Axis]) -> None:
    """Give the axis of a result that has the units of one axis of the source their numbers."""
    places = where.cpu().numpy().astype(np.int64)
    numbers = flow.units.roots(ids)[np.maximum(places, 0)]
    if (places < 0).any():
        numbers = np.where(places < 0, nothing := flow.units.fresh(1), numbers)
        flow.units.fix(nothing, f"it is padded with zeros{flow.at()}")
    axes = [j for j, size in enumerate(numbers.shape) if size > 1 and (numbers != numbers.take([0], j)).any()]
    if not axes:
        _single(flow, ids, numbers, found)
        return
    j = axes[flow.turn(at, len(axes))]
    rows = np.moveaxis(numbers, j, 0).reshape(numbers.shape[j], -1)
    first = rows[:, 0].copy()
    if len(axes) > 1:
        flow.units.join(first[:, None], rows)
        flow.viewed(first, at, len(axes))
    if len(first) < len(ids):
        flow.cut(ids, first)
    there, why = found[j], f"it is laid out together with other units{flow.at()}"
    if there is None or flow.units.loose(there):
        found[j] = first
        if there is not None:
            flow.units.fix(there, why)
    else:
        flow.units.fix(first, why)


def _single(flow: Flow, ids: Ids, numbers: Ids, found: list[Axis]) -> None:
    """All that is left of an axis is one unit: a single position of several, or the axis whole."""
    if len(np.unique(flow.units.roots(ids))) > 1:
        flow.pick(ids)
    else:
        for j, size in enumerate(numbers.shape):
            if size == len(ids) and found[j] is None and (size > 1 or numbers.ndim == 1):
                found[j] = np.full(size, numbers.flat[0])
                return


def joined(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """Laid one behind the other, or beside each other."""
    given = [x for x in args[0] if x.shape != (0,)]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    stacked = kind_of(func) == "stack"
    dims = given[0].dim() + stacked
    dim %= dims
    others = [at for at in range(dims) if at != dim]
    labels: list[Axis] = [None] * dims
    for one in given:
        own = flow.labels(one)
        own = [*own[:dim], None, *own[dim:]] if stacked else own
        for at in others:
            same = one is given[0]
            labels[at] = own[at] if same else flow.join(labels[at], own[at], f"it meets what cannot go{flow.at()}")
    if not stacked and any(flow.labels(x)[dim] is not None for x in given):
        labels[dim] = np.concatenate([_known(flow, x, dim) for x in given])

    def put(out: Any) -> None:
        flow.put(out, labels)

    return put


def _known(flow: Flow, x: Tensor, dim: int) -> Ids:
    """The numbers along an axis; where it has none, some that cannot go."""
    if (ids := flow.labels(x)[dim]) is not None:
        return ids
    ids = flow.units.fresh(x.shape[dim])
    flow.units.fix(ids, f"it stands beside what cannot go{flow.at()}")
    return ids
