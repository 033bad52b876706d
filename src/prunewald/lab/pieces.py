"""Work in pieces that are saved one by one, so that a run may be stopped or killed at any time and go on later."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from prunewald.lab.cache import Cache

T = TypeVar("T")
_SECONDS = 120.0  # that a piece takes, where its size is free
_MARGIN = 0.8  # of the time that is left: rates are of the piece before


class Over(Exception):
    """The time that was given is over: what is finished is kept."""


@dataclass(frozen=True)
class Pieces:
    """How a list of work is cut into pieces, and until when."""

    cache: Cache  # which keeps a folder for each piece that is under way
    size: int = 0  # networks of a piece; 0: it grows from `least` to what takes about two minutes, at most `most`
    least: int = 1
    most: int = 1000
    deadline: float = float("inf")  # by the monotonic clock
    hard: float = float("inf")  # what would not be done by then is not begun
    seconds: dict[str, float] = field(default_factory=dict)  # that a network of each kind of piece took last

    def of(
        self, what: str, items: Sequence[T], finished: Callable[[T], bool], *, each: int = 1, savings: int = 1
    ) -> Iterator[tuple[list[T], Path]]:
        """What is not finished, piece by piece, while there is time, with a folder for what is under way.

        Pieces that were killed come first, as they were. Then come the others; another run may finish some of them
        meanwhile. An item is of `each` networks, and the work on a piece is saved `savings` times.
        """
        items = [item for item in items if not finished(item)]
        for some in self.cache.stopped(what, items):
            if not any(map(finished, some)):
                yield from self._piece(what, some)
        most = max(1, (self.size or self.most) // each)
        least = min(most, max(1, self.least // each))
        size = most if self.size else self._next_size(what, most, least, most)
        at = 0
        while at < len(items):
            size = min(size, self._room(what, min(size, len(items) - at), savings))
            some = [item for item in items[at : at + size] if not finished(item)]
            at += size
            if some:
                began = time.monotonic()
                yield from self._piece(what, some)
                self.seconds[what] = (time.monotonic() - began) / savings / len(some)
                if not self.size:
                    size = self._next_size(what, 4 * size, least, most)

    def _next_size(self, what: str, usual: int, least: int, most: int) -> int:
        """How many items take about two minutes, at most `usual`; the least where one's time is not known."""
        known = self.seconds.get(what)
        return least if known is None else max(least, min(most, usual, int(_SECONDS / max(known, 1e-9))))

    def _room(self, what: str, size: int, savings: int) -> int:
        """How many of so many items will be done by the hard limit; `Over` where less than half of them would.

        A few networks take nearly as long as twice as many, so that a much smaller piece would not end in time either.
        """
        left = self.hard - time.monotonic()
        known = self.seconds.get(what)
        if known is None or left == float("inf"):
            return size
        room = int(_MARGIN * left / (known * savings))
        if room < size / 2 or not room:
            raise Over
        return min(size, room)

    def _piece(self, what: str, some: list[T]) -> Iterator[tuple[list[T], Path]]:
        self.check_time()
        with self.cache.running(what, some) as folder:
            yield some, folder

    def check_time(self) -> None:
        """Raise `Over` once the deadline has passed."""
        if time.monotonic() > min(self.deadline, self.hard):
            raise Over
