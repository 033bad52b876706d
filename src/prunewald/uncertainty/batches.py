"""Data as estimators read them: a batch at a time, however many passes they need."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from torch import Tensor

from prunewald.uncertainty.likelihood import Loss, counted

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]

EMPTY = "batches, a {}, gave no sample to count: give pairs of inputs and targets (a generator can be read only once)"


class Samples:
    """The samples that a loss counts, in the batches they come in, read again from their source at every pass.

    No more than a batch or two are in memory. What can be read only once, as a generator, is kept unless `passes` is 1.
    """

    def __init__(self, batches: Batches, loss: Loss, *, passes: int | None) -> None:
        self._kind, self._loss = type(batches).__name__, loss
        once = iter(batches) is batches
        self._source = list(batches) if once and passes != 1 else batches
        self._count = 0
        self._first: Tensor | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        found = 0
        for given, targets in self._source:
            x, y = counted(given.detach(), targets.detach(), self._loss)
            if len(x):
                found += len(x)
                if self._first is None:
                    self._first = x[:1].clone()  # a view would keep the whole batch
                yield x, y
        if not found:
            raise ValueError(EMPTY.format(self._kind))
        self._count = found

    @property
    def count(self) -> int:
        """How many samples there are; a pass of its own where none was made yet."""
        if not self._count:
            for _ in self:
                pass
        return self._count

    @property
    def first(self) -> Tensor:
        """The inputs of one sample, as a batch."""
        if self._first is None:
            next(iter(self))
        assert self._first is not None
        return self._first
