"""Save a pruned model to a packed file, and load it."""

import os
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import torch
from torch import Tensor, nn

from prunewald.distributed import in_group, refuse_shards
from prunewald.model.layouts import is_adapter, survey
from prunewald.model.modules import plain
from prunewald.model.widths import Widths, narrow_, record, recorded, set_widths_, unfit_widths
from prunewald.pruning.report import Report
from prunewald.storage import container, index, report_json
from prunewald.storage.codes.streams import Codec
from prunewald.storage.container import Contents, blaming, check_max_bytes, check_size
from prunewald.storage.index import DTYPES, TensorEntry
from prunewald.storage.options import FileOptions, Size, Values
from prunewald.storage.positions import Positions
from prunewald.storage.state_dict import pack, same_bits, tied, unfit, unpack
from prunewald.util.files import FilePath
from prunewald.util.notices import warn

M = TypeVar("M", bound=nn.Module)
_SHOWN = 5
_ADAPTERS = (
    "the file has adapters, {!r} first: save the model that merge_and_unload() gives, or load into one with the same "
    "adapters"
)


@runtime_checkable
class Pruned(Protocol):
    """What `save` needs of a pruner: these three, and no more."""

    @property
    def model(self) -> nn.Module:
        """The model, its pruned weights at zero."""

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """A bool tensor by parameter name; False is pruned."""

    @property
    def report(self) -> Report | None:
        """What the last pruning did, to be stored beside the weights; None if there is nothing to tell."""


def save(
    pruner: Pruned | nn.Module,
    path: FilePath,
    *,
    values: Values = None,
    size: Size = 32,
    codec: Codec = "auto",
    positions: Positions = "auto",
) -> None:
    """Save a pruner's model, or a plain one, as a packed file: small, no pickle, whole or not at all.

    Of a pruned tensor only the surviving values and their places are stored, near their entropy; the same is done to
    any other tensor where it makes it smaller. Unless `values` says otherwise all is bit for bit; weights that take at
    most 256 values, such as those of a quantised model, are found and stored as a codebook.

    `values` may store the weights, which are the pruner's targets (or what they would be), in fewer bits: "float32",
    "float16", "bfloat16", "int8", "int4" (linear, a scale for each tensor) or "codebook" (k-means, `size` shared
    values, 2 to 256). A dict by name or glob says it tensor by tensor, and so may `size`. Zeros stay zeros;
    everything else (biases, norms, buffers) stays as it is.

    `codec` is the entropy code: "huffman", "ans", "raw", or the smaller ("auto"; ANS needs constriction). `positions`:
    "gaps" (Huffman), "ans", "bits" (a bit for each weight), or the smallest that `codec` allows ("auto").
    """
    masks: Mapping[str, Tensor] = {}
    report = None
    if isinstance(pruner, nn.Module):
        model = plain(pruner)
        state = model.state_dict()
    elif isinstance(pruner, Pruned):
        model = plain(pruner.model)
        state = model.state_dict()  # first: that looks after the zeros, which the others tell of
        masks, report = pruner.masks, pruner.report
        if report is not None and report.unfinished:
            warn(f"{os.fspath(path)!r} is saved before its pruning is done: {report.unfinished}")
    else:
        given = type(pruner).__name__
        raise TypeError(f"save takes a pruner (with model, masks and report) or a torch.nn.Module, not a {given}")
    targets = set(masks) or (_weights(model) if isinstance(values, str) else set())
    save_state(state, path, FileOptions(values, size, codec, positions), targets, masks, report, recorded(model))


def save_state(
    state: Mapping[str, Any],
    path: FilePath,
    options: FileOptions,
    targets: set[str],
    masks: Mapping[str, Tensor],
    report: Report | None,
    widths: Widths | None = None,
) -> None:
    """Save a state dict; `targets` are the names of the tensors that a single word for `values` is meant for."""
    if in_group():
        refuse_shards(state)
    entries, stored = pack(state, masks, options.chooser(state, targets))
    told = None if report is None else report_json.to_json(report)
    container.write(path, index.dump(entries, told, widths), stored)


@overload
def load(path: FilePath, *, into: M, max_bytes: int | None = None) -> M: ...
@overload
def load(path: FilePath, *, into: None = None, max_bytes: int | None = None) -> dict[str, Tensor]: ...
def load(path: FilePath, *, into: M | None = None, max_bytes: int | None = None) -> M | dict[str, Tensor]:
    """Load a packed file: into a model, which is returned, or as a state dict on the CPU.

    The model must have the names, shapes and dtypes of the file; one that is wider than a file of a shrunk model is
    made as narrow first. On any error it is untouched: a PackedFileError if the file is at fault, a ValueError that
    names the differences if it is another model's.

    Without a model, tensors of up to `max_bytes` in all are read: 1 GiB, or 256 times the file if that is more.
    """
    check_max_bytes(max_bytes)
    with blaming(path):
        contents = container.read(path)
        entries, _ = read_index(contents)
        widths = index.parse_widths(contents.index)
        if into is None or max_bytes is not None:
            check_size(contents.size, sum(entry.nbytes for entry in entries), max_bytes)
    target: dict[str, Any] = {}
    narrower: dict[str, list[Tensor | None]] = {}
    if into is not None:
        # load_state_dict fills what fits before it complains, so nothing may be left for it to complain about.
        target, by_name = plain(into).state_dict(), {name: entry for entry in entries for name in entry.names}
        narrower = {} if widths is None else _narrower(by_name, target)
        misfits = unfit_widths(plain(into), widths or {})
        _require(path, into, _differences(by_name, target, narrower) + misfits)
    with blaming(path):
        state = unpack(entries, contents.tensors)
    if into is None:
        return state
    _require(path, into, _clashes(state, target))
    if widths is not None:
        narrow_(plain(into), narrower)
        set_widths_(plain(into), widths)
        record(plain(into), widths)
        target = plain(into).state_dict()
    target.update(state)  # the model's own state dict, since it carries the versions of its modules
    plain(into).load_state_dict(target)
    return into


def _narrower(entries: Mapping[str, TensorEntry], target: Mapping[str, Any]) -> dict[str, list[Tensor | None]]:
    """Of the tensors of a model that are wider than those of a file of a shrunk one: as many positions of each axis."""
    found: dict[str, list[Tensor | None]] = {}
    for name, entry in entries.items():
        wide = tuple(target[name].shape) if isinstance(target.get(name), Tensor) else ()
        if len(wide) == len(entry.shape) and wide != entry.shape:
            sizes = list(zip(entry.shape, wide, strict=True))
            if all(n <= m for n, m in sizes):
                found[name] = [None if n == m else torch.arange(n) for n, m in sizes]
    return found


def read_index(contents: Contents) -> tuple[list[TensorEntry], Report | None]:
    """Read which tensors a file holds, and the report; a ValueError with the reason if its index makes no sense."""
    entries, report = index.parse(contents.index)
    return entries, None if report is None else report_json.from_json(report)


def _weights(model: nn.Module) -> set[str]:
    """The names of the parameters that a Pruner would take for its targets."""
    if any(nn.parameter.is_lazy(param) for param in model.parameters()):
        return set()  # refused later, with a better reason
    return set(survey(model).weights)


def _require(path: FilePath, model: nn.Module, differences: list[str]) -> None:
    if differences:
        shown = "; ".join(differences[:_SHOWN]) + ("; ..." if len(differences) > _SHOWN else "")
        raise ValueError(f"{path} does not fit this {type(model).__name__}: {shown}")


def _differences(
    entries: Mapping[str, TensorEntry], target: Mapping[str, Any], narrower: Mapping[str, Any]
) -> list[str]:
    """In what a file's tensors and those of a model differ, in words."""
    adapters = [name for name in entries if name not in target and is_adapter(name)]
    found = [_ADAPTERS.format(adapters[0])] if adapters else []
    found += [f"{name!r} is in the model only" for name in target if name not in entries]
    found += [f"{name!r} is in the file only" for name in entries if name not in target]
    for name, entry in entries.items():
        shape = tuple(target[name].shape) if name in narrower else entry.shape
        ours = f"{DTYPES[entry.dtype]} {shape}"
        if name in target and ours != (theirs := _kind(target[name])):
            found.append(f"{name!r} is {ours} in the file, {theirs} in the model")
    return found


def _kind(value: Any) -> str:
    if reason := unfit(value):
        return reason
    # load_state_dict cannot write to an expanded tensor.
    expanded = any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True))
    return f"{value.dtype} {tuple(value.shape)}" + (", expanded" if expanded else "")


def _clashes(state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> list[str]:
    """Which tensors of a file should be one and the same for a model that ties them, and are not."""
    return [
        f"{first!r} and {name!r} are tied in the model and differ in the file"
        for first, *others in tied(target)
        for name in others
        if not same_bits(state[first], state[name])
    ]
