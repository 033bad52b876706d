"""Units of a model by number: which positions of its tensors go together, and which can never go."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]  # a number for each position along an axis


class Units:
    """Numbers that can be joined, and fixed for a reason: a union of disjoint sets.

    Numbers of expanded axes are loose until they are joined: there they are one value, many times.
    """

    def __init__(self) -> None:
        self._above: Ids = np.arange(1024)
        self._next = 0
        self._fixed: dict[int, str] = {}
        self._loose: set[int] = set()

    def fresh(self, count: int, *, loose: bool = False) -> Ids:
        """So many numbers that nothing else has."""
        start, self._next = self._next, self._next + count
        if self._next > len(self._above):
            size = max(2 * len(self._above), self._next)
            self._above = np.concatenate([self._above, np.arange(len(self._above), size)])
        found = np.arange(start, self._next)
        self._loose.update(found.tolist() if loose else ())
        return found

    def loose(self, ids: Ids) -> bool:
        """Whether these numbers are of an expanded axis that has met nothing yet."""
        return int(ids[0]) in self._loose and np.array_equal(self.roots(ids), ids)

    def roots(self, ids: Ids) -> Ids:
        """One number for all that are joined: the lowest of them."""
        found = ids
        while not np.array_equal(found, above := self._above[found]):
            found = above
        self._above[ids] = found
        return found

    def join(self, a: Ids, b: Ids) -> None:
        """Join numbers pair by pair."""
        pairs = np.stack(np.broadcast_arrays(self.roots(a), self.roots(b)), -1).reshape(-1, 2)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        for one, other in np.unique(pairs, axis=0).tolist():
            low, high = sorted((self._root(one), self._root(other)))
            if low != high:
                self._above[high] = low
                if (why := self._fixed.pop(high, None)) is not None:
                    self._fixed.setdefault(low, why)

    def fix(self, ids: Ids, why: str) -> None:
        """These can never go, and all that is joined with them."""
        for root in np.unique(self.roots(ids)).tolist():
            self._fixed.setdefault(root, why)

    def why_fixed(self, root: int) -> str | None:
        """Why a number can never go; None where it can."""
        return self._fixed.get(root)

    def _root(self, one: int) -> int:
        while (above := int(self._above[one])) != one:
            one = above
        return one
