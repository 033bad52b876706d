"""Units of a model by number: which positions of its tensors go together, and which can never go."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]  # a number for each position along an axis
LOOSE = -1  # a position of an axis that was expanded: it goes with whatever it meets


class Units:
    """Numbers that can be joined, and fixed for a reason: a union of disjoint sets."""

    def __init__(self) -> None:
        self._above: Ids = np.arange(1024)
        self._next = 0
        self._fixed: dict[int, str] = {}

    def fresh(self, count: int) -> Ids:
        """So many numbers that nothing else has."""
        start, self._next = self._next, self._next + count
        if self._next > len(self._above):
            size = max(2 * len(self._above), self._next)
            self._above = np.concatenate([self._above, np.arange(len(self._above), size)])
        return np.arange(start, self._next)

    def roots(self, ids: Ids) -> Ids:
        """One number for all that are joined; LOOSE stays."""
        found = np.where(ids == LOOSE, 0, ids)
        while not np.array_equal(found, above := self._above[found]):
            found = above
        self._above[ids[ids != LOOSE]] = found[ids != LOOSE]
        return np.where(ids == LOOSE, LOOSE, found)

    def join(self, a: Ids, b: Ids) -> None:
        """Join numbers pair by pair."""
        pairs = np.stack(np.broadcast_arrays(self.roots(a), self.roots(b)), -1).reshape(-1, 2)
        pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & (pairs != LOOSE).all(1)]
        for one, other in np.unique(pairs, axis=0).tolist():
            low, high = sorted((self._root(one), self._root(other)))
            if low != high:
                self._above[high] = low
                if (why := self._fixed.pop(high, None)) is not None:
                    self._fixed.setdefault(low, why)

    def fix(self, ids: Ids, why: str) -> None:
        """These can never go, and all that is joined with them."""
        for root in np.unique(self.roots(ids)).tolist():
            if root != LOOSE:
                self._fixed.setdefault(root, why)

    def why_fixed(self, root: int) -> str | None:
        """Why a number can never go; None where it can."""
        return self._fixed.get(root)

    def _root(self, one: int) -> int:
        while (above := int(self._above[one])) != one:
            one = above
        return one
