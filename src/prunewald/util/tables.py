"""Tables of short texts, for a terminal and for a notebook."""

from collections.abc import Collection, Sequence
from html import escape

from prunewald.util.text import printable

Cells = Sequence[str]
_LONGEST = 200  # characters of a cell, since one long cell makes every line as long


def text_table(
    head: Cells,
    rows: Sequence[Cells],
    *,
    left: Collection[int] = (0,),
    total: Cells | None = None,
    gaps: Collection[int] = (),
) -> str:
    """Columns as wide as they need to be: those in `left` begin at the left, the others (numbers) end at the right.

    `gaps` are the rows, counted from 0, that an empty line stands before. What a terminal would obey is escaped, and a
    cell of more than 200 characters is cut.

    >>> print(text_table(("layer", "kept"), [("fc1", "1,024"), ("fc2", "9")], total=("total", "1,033")))
    layer   kept
    ------------
    fc1    1,024
    fc2        9
    ------------
    total  1,033
    """
    given = [head, *rows, *([] if total is None else [total])]
    every = [[printable(cell, _LONGEST) for cell in cells] for cells in given]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = [_line(cells, widths, left) for cells in every]
    rule = "-" * max(map(len, lines))
    last = [] if total is None else [rule, lines.pop()]
    body = [f"\n{line}" if at in gaps else line for at, line in enumerate(lines[1:])]
    return "\n".join([lines[0], rule, *body, *last])


def html_table(head: Cells, rows: Sequence[Cells], *, left: Collection[int] = (0,), total: Cells | None = None) -> str:
    """The same as HTML, which notebooks show; what stands in a cell is text, never markup."""
    body = "".join(_html_row(cells, "td", left) for cells in rows)
    foot = "" if total is None else f"<tfoot>{_html_row(total, 'th', left)}</tfoot>"
    return f"<table><thead>{_html_row(head, 'th', left)}</thead><tbody>{body}</tbody>{foot}</table>"


def _line(cells: Cells, widths: Sequence[int], left: Collection[int]) -> str:
    placed = [
        cell.ljust(width) if at in left else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(placed).rstrip()


def _html_row(cells: Cells, tag: str, left: Collection[int]) -> str:
    sides = ["left" if at in left else "right" for at in range(len(cells))]
    placed = zip(cells, sides, strict=True)
    return (
        "<tr>" + "".join(f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in placed) + "</tr>"
    )
