"""What each operation of torch does to the units that come to it.

A rule looks at the arguments before the operation runs, and returns what gives its results their numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from prunewald.model.flow import Axis, Flow, Meeting, Put, kind_of, tensors
from prunewald.model.moving import MOVED, joined, moved

Rule: TypeAlias = Callable[[Flow, Any, tuple[Any, ...], Mapping[str, Any]], Put]

_SAMES = "clone detach alias _to_copy lift_fresh lift contiguous copy native_dropout dropout _prelu_kernel masked_fill"
_SAMES += " tril triu fill zero bernoulli to where hardswish hardsigmoid hardtanh mish softplus log_sigmoid_forward elu"
_SAMES += " celu selu threshold softshrink hardshrink rrelu_with_noise"
_SAME = frozenset(_SAMES.split())
_REDUCED = "mean sum amax amin max min var std var_mean std_mean prod any all norm argmax argmin logsumexp median"
_REDUCED += " linalg_vector_norm count_nonzero"
_ALONG = "_softmax _log_softmax _safe_softmax softmax log_softmax cumsum cumprod sort topk"
_BATCH_NORMS = "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_no_update"
_BATCH_NORMS += " _native_batch_norm_legit_no_training _batch_norm_with_update"
_POOLED = {"1d": 1, "2d": 2, "3d": 3}


def rule(kind: str, func: Any) -> Rule | None:
    """The rule of an operation; None where there is none."""
    if kind in _RULES:
        return _RULES[kind]
    if is_pointwise(kind, func):
        return pointwise
    return spatial if is_spatial(kind) else None


def is_pointwise(kind: str, func: Any) -> bool:
    """Whether each value of a result comes from those at its own place."""
    return torch.Tag.pointwise in func.tags or kind in _SAME


# ---- position by position ------------------------------------------------------------------------------------------


def pointwise(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """What meets at a position goes together."""
    labels = met(flow, tensors((args, kwargs)))

    def put(out: Any) -> None:
        for x in tensors(out):
            flow.put(x, labels[len(labels) - x.dim() :])

    return put


def met(flow: Flow, given: Sequence[Tensor]) -> list[Axis]:
    """The numbers of tensors that are broadcast to each other."""
    dims = max(x.dim() for x in given)
    found: list[Axis] = [None] * dims
    for at in range(1, dims + 1):
        size = max(x.shape[-at] for x in given if x.dim() >= at)
        parts = [flow.labels(x)[-at] for x in given if x.dim() >= at and x.shape[-at] == size]
        if size == 1:  # a single position is a unit where it is one of a parameter's
            parts = [one for one in parts if one is not None] or [None]
        axis = parts[0]
        for one in parts[1:]:
            axis = flow.join(axis, one, f"it meets what cannot go{flow.at()}")
        found[-at] = axis
    return found


# ---- layers --------------------------------------------------------------------------------------------------------


def product(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """A product of matrices: what is summed over meets, the rest goes on."""
    bias, a, b = (None, *args) if len(args) == 2 else args
    scaled = any(kwargs.get(name, 1) != 1 for name in ("alpha", "beta"))
    left, right = flow.labels(a), flow.labels(b)
    inner = max(b.dim() - 2, 0)
    owners = flow.parameter(a), flow.parameter(b)
    if owners == (None, None):
        for ids in (left[-1], right[inner]):
            if ids is not None:
                flow.units.fix(ids, f"it is summed over in a product of two activations{flow.at()}")
    _meet(flow, b, inner, a, a.dim() - 1, bias if b.dim() == 2 and not scaled else None)
    _meet(flow, a, a.dim() - 1, b, inner, None)
    flow.join(left[-1], right[inner], f"it meets what cannot go{flow.at()}")
    for x, labels, at in ((a, left, a.dim() - 2), (b, right, b.dim() - 1 if b.dim() > 1 else -1)):
        if flow.parameter(x) is not None and at >= 0:
            flow.role(labels[at], "makes")
    labels = left[:-2] + [left[-2]] * (a.dim() > 1) + [right[-1]] * (b.dim() > 1)
    if a.dim() == 3:
        labels[0] = flow.join(left[0], right[0], f"it meets what cannot go{flow.at()}")

    def put(out: Any) -> None:
        flow.put(out, labels)
        if bias is not None:
            flow.put(out, met(flow, [out, bias]))

    return put


def _meet(flow: Flow, weight: Tensor, axis: int, x: Tensor, x_axis: int, bias: Any) -> None:
    """A layer reads units, if it is one."""
    ids = flow.labels(weight)[axis]
    if flow.parameter(weight) is None or flow.parameter(x) is not None or ids is None:
        return
    flow.role(ids, "reads")
    if flow.listener is not None:
        name = None if bias is None or bias.dim() != 1 else flow.parameter(bias)
        flow.listener.meets(Meeting(*flow.owner(ids), x, x_axis, name))


def convolution(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """A convolution of any kind. Of a grouped one whole groups are units."""
    x, weight, bias, _, padding, _, transposed, _, groups = args[:9]
    own, given = flow.labels(weight), flow.labels(x)
    reads, makes = (0, 1) if transposed else (1, 0)
    flow.fix(weight, "it is the size of a kernel", range(2, weight.dim()))
    channels = given[1]
    if groups == 1:
        _meet(flow, weight, reads, x, 1, None if transposed or any(padding) else bias)
        flow.join(channels, own[reads], f"it meets what cannot go{flow.at()}")
        out_ids = own[makes]
    else:
        out_ids = _grouped(flow, channels, own, int(groups), bool(transposed), weight.shape[1])
    flow.role(own[makes] if groups == 1 else own[0], "makes")
    if bias is not None:
        out_ids = flow.join(out_ids, flow.labels(bias)[0], f"it meets what cannot go{flow.at()}")

    def put(out: Any) -> None:
        flow.put(out, [given[0], out_ids, *[None] * (out.dim() - 2)])

    return put


def _grouped(flow: Flow, channels: Axis, own: list[Axis], groups: int, transposed: bool, second: int) -> Axis:
    """Each group is one unit: all that it reads, its filters, and all that it makes."""
    rows = own[0]
    if rows is None:
        return None
    if own[1] is not None and second > 1:
        flow.units.fix(own[1], "it is an axis of a grouped convolution, of which whole groups are units")
    by_group = rows.reshape(groups, -1)
    flow.units.join(by_group[:, :1], by_group)
    if channels is None:
        flow.units.fix(rows, f"it meets what cannot go{flow.at()}")
    else:
        flow.units.join(by_group[:, :1], channels.reshape(groups, -1))
    return np.repeat(by_group[:, 0], second) if transposed else rows


def batch_norm(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """A norm over each channel, with entries of its own for it."""
    labels = list(flow.labels(args[0]))
    for one in args[1:5]:
        if isinstance(one, Tensor) and one.dim() == 1:
            labels[1] = flow.join(labels[1], flow.labels(one)[0], f"it meets what cannot go{flow.at()}")
    return _first(flow, labels)


def layer_norm(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """A norm over the last axes: their widths stay."""
    x, over = args[0], len(args[1])
    flow.fix(x, f"a norm takes its mean or square over it{flow.at()}", range(x.dim() - over, x.dim()))
    for one in args[2:4]:
        if isinstance(one, Tensor):
            flow.fix(one, "it is an entry of a norm over the width")
    return _first(flow, flow.labels(x))


def group_norm(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """A norm over groups of channels: whole groups are units."""
    labels, groups = list(flow.labels(args[0])), int(args[6] if kind_of(func) == "native_group_norm" else args[1])
    entries = args[1:3] if kind_of(func) == "native_group_norm" else args[2:4]
    for one in entries:
        if isinstance(one, Tensor):
            labels[1] = flow.join(labels[1], flow.labels(one)[0], f"it meets what cannot go{flow.at()}")
    if (ids := labels[1]) is not None:
        if groups == 1:
            flow.units.fix(ids, f"a norm takes its mean or square over it{flow.at()}")
        by_group = ids.reshape(groups, -1)
        flow.units.join(by_group[:, :1], by_group)
    return _first(flow, labels)


def _first(flow: Flow, labels: list[Axis]) -> Put:
    """The first result has these numbers; the others are statistics that nothing goes on with."""

    def put(out: Any) -> None:
        first, *others = tensors(out)
        flow.put(first, labels)
        for one in others:
            flow.put(one, [None] * one.dim())

    return put


def halves(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """One half of an axis gates the other."""
    labels, dim = list(flow.labels(args[0])), (args[1] if len(args) > 1 else kwargs.get("dim", -1))
    if (ids := labels[dim]) is not None:
        labels[dim] = flow.join(ids[: len(ids) // 2], ids[len(ids) // 2 :], "halves meet")
    return _first(flow, labels)


def lookup(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """Rows of a table: its columns are units, its rows are not."""
    table, at = args[:2]
    labels = flow.labels(table)
    flow.fix(table, "its positions are what inputs name", [0])
    flow.role(labels[1], "makes")
    return _first(flow, [*[None] * at.dim(), labels[1]])


# ---- over an axis --------------------------------------------------------------------------------------------------


def reduced(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """A mean, a sum, a largest: what is taken over units needs all of them."""
    x = args[0]
    dims = _dims(func, args, kwargs, x)
    kept = [at for at in range(x.dim()) if at not in dims]
    flow.fix(x, f"{kind_of(func)} is taken over it{flow.at()}", dims)
    labels = flow.labels(x)

    def put(out: Any) -> None:
        for one in tensors(out):
            flow.put(one, [labels[at] for at in kept] if one.dim() == len(kept) else _held(labels, kept))

    return put


def _held(labels: list[Axis], kept: Sequence[int]) -> list[Axis]:
    return [ids if at in kept else None for at, ids in enumerate(labels)]


def along(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """As a softmax, over an axis that stays."""
    x = args[0]
    dims = _dims(func, args, kwargs, x)
    flow.fix(x, f"{kind_of(func)} is taken over it{flow.at()}", dims)
    labels = _held(flow.labels(x), [at for at in range(x.dim()) if at not in dims])

    def put(out: Any) -> None:
        for one in tensors(out):
            flow.put(one, labels)

    return put


def _dims(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], x: Tensor) -> list[int]:
    """Over which axes an operation goes, by its schema; all where it does not say."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.name in ("dim", "dims"):
            given = args[at] if at < len(args) else kwargs.get(argument.name, argument.default_value)
            if given is None or given == []:
                break
            return [one % max(x.dim(), 1) for one in (given if isinstance(given, list | tuple) else [given])]
    return list(range(x.dim()))


def is_spatial(kind: str) -> int:
    """Of how many dimensions a pooling, an upsampling or a padding is; 0 for what is none."""
    if not any(word in kind for word in ("pool", "upsample", "pad")) or "backward" in kind:
        return 0
    return next((dims for word, dims in _POOLED.items() if word in kind), 0)


def spatial(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Put:
    """Pooling, upsampling, padding: channel by channel."""
    x = args[0]
    dims = is_spatial(kind_of(func))
    lead = x.dim() - dims
    flow.fix(x, f"{kind_of(func)} is taken over it{flow.at()}", range(lead, x.dim()))
    labels = flow.labels(x)[:lead]

    def put(out: Any) -> None:
        for one in tensors(out):
            flow.put(one, [*labels, *[None] * (one.dim() - lead)])

    return put


_RULES: dict[str, Rule] = {
    **dict.fromkeys(MOVED, moved),
    **dict.fromkeys(_REDUCED.split(), reduced),
    **dict.fromkeys(_ALONG.split(), along),
    **dict.fromkeys(["mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"], product),
    **dict.fromkeys(["cat", "stack", "_cat", "concat"], joined),
    **dict.fromkeys(["convolution", "_convolution", "convolution_overrideable"], convolution),
    **dict.fromkeys(_BATCH_NORMS.split(), batch_norm),
    **dict.fromkeys(["native_layer_norm", "_fused_rms_norm"], layer_norm),
    "native_group_norm": group_norm,
    "embedding": lookup,
    "glu": halves,
}
