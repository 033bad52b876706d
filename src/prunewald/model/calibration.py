"""Calibration data as people have them: read a batch at a time, moved to the model, and given to it as it takes them.

    for batch in Calibration(data, model, passes=1, limit=8):   # each `Batch` is on the model's device
        returned = batch.call(model)            # positional, or by keyword where the batch is a dict; labels passed on
        returned = batch.call(model, labels=False)              # without labels, for a loss of our own
        batch.targets                           # what comes after the inputs, or the labels of a dict; None: none
        batch.required                          # the same, or an error that says what to give
        batch.size                              # how many samples
        counted_positions(batch)                # bool (B, T): which positions of sequences count; None: all do

`prunewald.model.returned` takes outputs, or the model's own loss, from what a call returned.
A batch is one of: a tensor; (inputs, targets), also with several inputs, (inputs, inputs, targets) or ((inputs,
inputs), targets), or ({...}, targets); a dict, as Hugging Face has them, with the targets under a key of `TARGETS`.
Where a model requires as many arguments as a tuple has elements, all of them are inputs.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from prunewald.model.modules import plain
from prunewald.util.arguments import whole
from prunewald.util.progress import progress_bar

TARGETS = ("labels", "label", "targets", "target", "y")  # keys of a dict under which its targets are looked for
EMPTY = "batches, a {}, gave no sample to count: give pairs of inputs and targets (a generator can be read only once)"
IGNORED = -100  # the label that torch's and Hugging Face's losses leave out

_ONE = "batches={}: that is one batch, and a pass over data reads several: give a list, [batch], or a DataLoader"
_SAMPLES = "batches, a {}, is a data set, which gives samples: give DataLoader({}(...), batch_size=64)"
_NO_TARGETS = (
    "a batch, {}, has no targets, and the loss needs them: give pairs (inputs, targets), or dicts with one of "
    "the keys {}"
)
_UNTAKEN = "{} does not take a batch of {} ({}): its forward takes {}; give batches of these"


@dataclass(frozen=True)
class Batch:
    """One batch, as a model takes it: what it is called with, and the targets beside that."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]  # without the targets
    targets: Any = None  # None: there are none
    key: str = ""  # the key under which they were in a dict; empty where they were not
    given: str = field(default="", repr=False)  # what the batch was, in words

    def call(self, model: nn.Module, *, labels: bool = True) -> Any:
        """What the model returns; `labels` of a dict are passed on where its forward takes them."""
        kwargs = self.keywords(model) if labels else self.kwargs
        try:
            return model(*self.args, **kwargs)
        except (TypeError, ValueError) as error:  # Hugging Face's take any key, and miss the right one
            taken = _Taken.by(model)
            if taken.fits(self.args, kwargs):
                raise  # it is about something inside the model
            raise TypeError(_UNTAKEN.format(taken.model, self.given, error, taken)) from error

    def check(self, model: nn.Module) -> None:
        """An error that names what was given, where a model cannot be called with it at all."""
        taken = _Taken.by(model)
        if error := taken.unfit(self.args, self.kwargs):
            raise TypeError(_UNTAKEN.format(taken.model, self.given, error, taken))

    def keywords(self, model: nn.Module) -> Mapping[str, Any]:
        """What the model is called with by keyword, with labels where its forward takes them."""
        passed = self.key and self.key in _Taken.by(model)
        return {**self.kwargs, self.key: self.targets} if passed else self.kwargs

    @property
    def required(self) -> Any:
        """The targets; an error where there are none."""
        if self.targets is None:
            raise ValueError(_NO_TARGETS.format(self.given, ", ".join(map(repr, TARGETS))))
        return self.targets

    @property
    def size(self) -> int:
        """How many samples it has: the length of its first tensor; 1 where it has none."""
        return next((len(t) for t in _tensors((self.args, self.kwargs)) if t.dim()), int(bool(self.args)))


def counted_positions(batch: Batch, ignored: int = IGNORED) -> Tensor | None:
    """True at the positions of a batch of sequences that count, (B, T); None where all do, or it has no sequences.

    Those are the ones that its `attention_mask` does not call padding; without one, those whose label is not `ignored`.
    """
    mask, ids = batch.kwargs.get("attention_mask"), batch.kwargs.get("input_ids")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        found = mask.bool()
    elif isinstance(ids, Tensor) and isinstance(batch.targets, Tensor) and batch.targets.shape == ids.shape:
        found = batch.targets != ignored
    else:
        return None
    return None if bool(found.all()) else found


class Calibration:
    """The batches of a source, as a model takes them, read again from it at every pass.

    No more than a batch or two are in memory. What can be read only once, as a generator, is kept unless `passes` is 1.
    `limit` is how many batches are read at most. A pass that finds no sample is an error.
    """

    def __init__(
        self,
        data: Iterable[Any],
        model: nn.Module,
        *,
        passes: int | None = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> None:
        if isinstance(data, Tensor | Mapping):
            raise TypeError(_ONE.format(_described(data)))
        self.limit = None if limit is None else whole("limit", limit, 1)
        self._kind, self._progress = type(data).__name__, progress
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise TypeError(_SAMPLES.format(self._kind, self._kind))
        once = isinstance(data, Iterator)  # to ask a shuffled DataLoader for one draws a random number
        self._source = list(islice(data, self.limit)) if once and passes != 1 else data
        self._taken, self._device = _Taken.by(model), device_of(model)

    def __iter__(self) -> Iterator[Batch]:
        length = len(self._source) if isinstance(self._source, Sized) else None
        total = min((n for n in (length, self.limit) if n is not None), default=None)
        found = 0
        with progress_bar(total, unit="batch", show=self._progress) as bar:
            for given in islice(self._source, self.limit):
                batch = as_batch(_moved(given, self._device), self._taken, _described(given))
                if batch.size:
                    found += batch.size
                    yield batch
                bar.update()
        if not found:
            self.nothing()

    def nothing(self) -> NoReturn:
        """The error of data in which there is no sample, or none that counts."""
        raise ValueError(EMPTY.format(self._kind))


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its inputs: the device of its first parameter, or of its first buffer."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def as_batch(given: Any, taken: "_Taken", words: str) -> Batch:
    """A batch as a loader gives it, sorted into what the model takes and what its outputs are compared with."""
    if isinstance(given, Mapping):
        key = next((k for k in TARGETS if k in given and (k in TARGETS[:2] or k not in taken)), "")
        return Batch((), {k: v for k, v in given.items() if k != key}, given.get(key), key, words)
    if not isinstance(given, list | tuple):
        return Batch((given,), {}, given=words)
    first = given[0] if given else None
    # A dict or a tuple, which the model takes one by one, is all of the inputs.
    inside = isinstance(first, Mapping) or (isinstance(first, list | tuple) and taken.least <= len(first) <= taken.most)
    every = taken.least == len(given) > 1 and not inside
    count = len(given) if every else max(1, min(len(given) - 1, 1 if inside else taken.most))
    inputs, rest = tuple(given[:count]), given[count:]
    targets = tuple(rest) if len(rest) > 1 else rest[0] if rest else None
    if isinstance(first, Mapping):
        return Batch((), first, targets, given=words)
    return Batch(inputs if first is None or not inside else tuple(first), {}, targets, given=words)


class _Taken:
    """What the forward of a model takes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = type(model).__name__
        self._signature = inspect.signature(model.forward)
        kinds = inspect.Parameter
        parameters = self._signature.parameters.values()
        ordered = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        self._named = {p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
        several = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        self.least = sum(p.default is kinds.empty for p in ordered)
        self.most = 1 << 30 if several else len(ordered)

    @classmethod
    def by(cls, model: nn.Module) -> "_Taken":
        """That of the model inside what is around it."""
        return cls(plain(model))

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether these are what it names, and not only what it swallows."""
        return kwargs.keys() <= self._named and not self.unfit(args, kwargs)

    def unfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Why it cannot be called with these; empty where it can."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        return str(self._signature).partition(" -> ")[0]


def _moved(tree: Any, device: torch.device) -> Any:
    """The same with every tensor on a device; what is like a dict or a tuple becomes a dict or a list."""
    if isinstance(tree, Tensor):
        return tree.to(device, non_blocking=True)
    if isinstance(tree, Mapping):
        return {key: _moved(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_moved(value, device) for value in tree]
    return tree


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    for inside in tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ():
        yield from _tensors(inside)


def _described(given: Any) -> str:
    """A batch in words, for an error."""
    if isinstance(given, Tensor):
        return f"a tensor {tuple(given.shape)}"
    if isinstance(given, Mapping):
        return f"a dict with {', '.join(map(repr, given))}"
    if isinstance(given, list | tuple):
        return f"a {type(given).__name__} of {len(given)}"
    return f"a {type(given).__name__}"
