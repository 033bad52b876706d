"""Data as estimators read them: the samples that a loss counts, a batch at a time, however many passes they need."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from prunewald.model.calibration import IGNORED, Batch, Calibration
from prunewald.model.modules import evaluating
from prunewald.model.returned import outputs, own_loss
from prunewald.uncertainty.likelihood import Loss, as_function, by_position, likelihood, recognised
from prunewald.util.trees import mapped

Batches: TypeAlias = Iterable[Any]

_NO_TENSOR = "targets of {} are {}: likelihoods take one tensor of targets; give pairs (inputs, targets)"
_ITSELF = (
    "loss={!r}: the labels are the input_ids themselves, which a model that predicts the next token shifts by one "
    "when it computes its loss; loss=None takes that loss, or shift them yourself"
)


@dataclass(frozen=True)
class Inputs:
    """What a model is called with for some samples: tensors with a row for each, and what is the same for all."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    size: int

    def __len__(self) -> int:
        return self.size

    @property
    def rows(self) -> list[Tensor]:
        """The tensors that have a row for each sample."""
        found: list[Tensor] = []

        def look(tensor: Tensor) -> Tensor:
            if self._has_rows(tensor):
                found.append(tensor)
            return tensor

        self.changed(look)
        return found

    def of(self, rows: Iterable[Tensor], size: int) -> "Inputs":
        """The same call for other samples, by tensors in the order of `rows`."""
        given = iter(rows)
        new = self.changed(lambda tensor: next(given) if self._has_rows(tensor) else tensor)
        return Inputs(new.args, new.kwargs, size)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        """With every tensor changed."""
        return Inputs(mapped(self.args, change), mapped(dict(self.kwargs), change), self.size)

    def taken(self, which: Tensor) -> "Inputs":
        """Only some samples, by a mask."""
        return self.of((t[which] for t in self.rows), int(which.sum()))

    def split(self, size: int) -> list["Inputs"]:
        """In pieces of at most so many samples."""
        lengths = [min(size, self.size - at) for at in range(0, self.size, size)]
        pieces = zip(*(t.split(size) for t in self.rows), strict=True)
        return [self.of(piece, length) for piece, length in zip(pieces, lengths, strict=True)]

    def given_to(self, model: nn.Module) -> Tensor:
        """The outputs of a model."""
        return outputs(Batch(self.args, self.kwargs, given=f"{self.size} samples").call(model))

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0 and len(tensor) == self.size


class Samples:
    """The samples that a loss counts, in the batches they come in, read again from their source at every pass.

    Of sequences with a label at each position, a sample is a whole sequence. What can be read only once, as a
    generator, is kept unless `passes` is 1. Without a loss it is the model's own, if its likelihood can be told.
    """

    def __init__(
        self,
        batches: Batches,
        model: nn.Module,
        loss: Loss | None,
        *,
        passes: int | None,
        limit: int | None = None,
        progress: bool = False,
    ) -> None:
        passes = None if loss is None else passes  # its likelihood is told from a first batch
        self._data = Calibration(batches, model, passes=passes, limit=limit, progress=progress)
        self._model, self._loss, self._shift = model, loss, False
        self.classes_last = loss is None  # models that compute a loss have them there
        self._ignored = loss.ignore_index if isinstance(loss, nn.CrossEntropyLoss) else IGNORED
        if loss is None:
            with evaluating(model), torch.no_grad():
                batch = next(iter(self._data))
                returned = batch.call(model)
                self.kind, self._shift = recognised(own_loss(returned), outputs(returned), batch.required)
        else:
            self.kind = likelihood(loss)
        self._count = 0
        self._first: Inputs | None = None

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        found = 0
        for batch in self._data:
            x, y = self._counted(batch)
            if len(x):
                found += len(x)
                if self._first is None:
                    one = torch.arange(len(x), device=y.device) == 0
                    self._first = x.taken(one)  # a copy: a view would keep the whole batch
                yield x, y
        if not found:
            self._data.nothing()
        self._count = found

    def _counted(self, batch: Batch) -> tuple[Inputs, Tensor]:
        """The samples of a batch that count: cross entropy leaves out those whose labels are all ignored."""
        batch.check(self._model)
        y = batch.required
        if not isinstance(y, Tensor):
            raise TypeError(_NO_TENSOR.format(batch.given, type(y).__name__))
        if self._loss is not None:
            refuse_itself(self._loss, batch)
        # Copies of what is not the caller's to differentiate.
        kwargs = batch.kwargs if self._loss is not None else batch.keywords(self._model)  # some make inputs of labels
        x = Inputs(batch.args, kwargs, batch.size).changed(Tensor.detach)
        y = y.detach()
        if self.kind != "cross_entropy" or y.is_floating_point():
            return x, y
        if self._shift:  # at each position the label is that of the next
            y = torch.cat([y[:, 1:], torch.full_like(y[:, :1], self._ignored)], 1)
        keep = y != self._ignored
        keep = keep if y.dim() == 1 else keep.flatten(1).any(1)
        if not bool(keep.all()):
            x, y = x.taken(keep), y[keep]
        return x, y if self._ignored == IGNORED or y.dim() == 1 else y.masked_fill(y == self._ignored, IGNORED)

    @property
    def count(self) -> int:
        """How many samples there are; a pass of its own where none was made yet."""
        if not self._count:
            for _ in self:
                pass
        return self._count

    @property
    def first(self) -> Inputs:
        """The inputs of one sample, as a batch."""
        if self._first is None:
            next(iter(self))
        assert self._first is not None
        return self._first


def refuse_itself(loss: Loss, batch: Batch) -> None:
    """Refuse labels that are the inputs themselves: the next token is what they are the labels of."""
    ids, y = batch.kwargs.get("input_ids"), batch.targets
    if isinstance(ids, Tensor) and isinstance(y, Tensor) and ids.dim() == 2 and ids.shape == y.shape:
        counts = y != IGNORED
        if bool(counts.any()) and bool((ids == y)[counts].all()):
            raise ValueError(_ITSELF.format(loss))


def value_of(loss: Loss | None, model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a batch; without one, that which the model computes itself.

    torch's own losses and the names of likelihoods are given the tensor of outputs, and classes at the end where
    labels have a position for each; a function of the caller's own is given what the model returns.
    """
    if loss is None:
        return own_loss(batch.call(model))
    function, takes_outputs = as_function(loss)
    returned, targets = batch.call(model, labels=False), batch.required
    if not takes_outputs:
        return function(returned, targets)
    refuse_itself(loss, batch)
    return function(*by_position(outputs(returned), targets))
