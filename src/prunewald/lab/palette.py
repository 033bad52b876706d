"""How a method is drawn, the same in every figure: by colour where sigma comes from, by mark how it is allocated.

Rows of one colour and mark in one figure, such as two lambda*, are told apart by how the mark is filled.
"""

from collections.abc import Iterable

from prunewald.lab.methods import EACH_ALIKE, parse
from prunewald.util import colours

# Where each layer is pruned alike, so that there is no allocation to tell apart; with the raw formula, which is the
# paper's, a row is another method.
_MARKS = {
    "abs": "x",
    "pseudo:formula": "^",
    "bootstrap:formula": "o",
    "dense": "_",
    "random": ".",
    "moment": "D",
    "pseudo": "s",
    "every": "v",
    "every:formula": "v",
    "bootstrap": "P",
    "bootstrap-same": "<",
    "bootstrap-same:formula": "<",
    "bootstrap-warm": ">",
    "bootstrap-warm:formula": ">",
    "fisher": "d",
    "wanda": "p",
    "obd": "h",
    "movement": "H",
    "taylor": "X",
    "snip": "3",
    "platon": "*",
}
_UNKNOWN = "1"
_ALLOCATIONS = {"lamp": "o", "erk": "s", "global": "^", "lamp-score": "v"}
_FILLS = ("full", "none", "left", "bottom", "right", "top")


def looks(rows: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, mark and filling of the rows of one figure, by their spelling."""
    found: dict[str, tuple[str, str, str]] = {}
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        own = look(row)
        found[row] = (*own, _FILLS[seen.get(own, 0) % len(_FILLS)])
        seen[own] = seen.get(own, 0) + 1
    return found


def look(row: str) -> tuple[str, str]:
    """Colour and mark of a row."""
    kind = parse(row)
    key = f"{kind.sigma}:formula" if "formula" in kind.marks else kind.sigma
    color, mark = colours.METHODS.get(key, colours.UNKNOWN), _MARKS.get(key, _UNKNOWN)
    return color, mark if kind.scope == EACH_ALIKE else _ALLOCATIONS.get(kind.scope, "8")
