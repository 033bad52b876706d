"""How a method is drawn, the same in every figure: by colour where sigma comes from, by mark how it is allocated.

Rows of one colour and mark in one figure, such as two lambda*, are told apart by how the mark is filled.
"""

from collections.abc import Iterable

from prunewald.lab.methods import EACH_ALIKE, parse

# The first three as the paper draws them; with the raw formula, which is the paper's, a row is another method.
_METHODS = {
    "abs": ("black", "x"),
    "pseudo:formula": ("tab:orange", "^"),
    "bootstrap:formula": ("tab:blue", "o"),
    "dense": ("0.5", "_"),
    "random": ("0.6", "."),
    "moment": ("tab:red", "D"),
    "pseudo": ("tab:green", "s"),
    "every": ("tab:purple", "v"),
    "every:formula": ("indigo", "v"),
    "bootstrap": ("tab:cyan", "P"),
    "bootstrap-same": ("steelblue", "<"),
    "bootstrap-same:formula": ("navy", "<"),
    "bootstrap-warm": ("tab:brown", ">"),
    "bootstrap-warm:formula": ("peru", ">"),
    "fisher": ("darkred", "d"),
    "wanda": ("tab:pink", "p"),
    "obd": ("tab:olive", "h"),
    "movement": ("darkkhaki", "H"),
    "taylor": ("teal", "X"),
    "snip": ("plum", "3"),
    "platon": ("goldenrod", "*"),
}
_UNKNOWN = ("0.3", "1")
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
    color, mark = _METHODS.get(key, _UNKNOWN)
    return color, mark if kind.scope == EACH_ALIKE else _ALLOCATIONS.get(kind.scope, "8")
