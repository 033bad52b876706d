"""Text for a terminal: what came from a file, and long lists of names."""

from collections.abc import Iterable


def printable(text: str, longest: int | None = None) -> str:
    r"""The text with everything escaped that a terminal would obey instead of showing it, as `repr` escapes it.

    With `longest`, what is longer is cut off there and ends in three dots.

    >>> print(printable("fc\x1b[2J.weight"))
    fc\x1b[2J.weight
    >>> print(printable("a very long name", longest=9))
    a very...
    """
    if longest is not None and len(text) > longest:
        text = text[: longest - 3] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def some(names: Iterable[str], most: int) -> str:
    """The first names of a list, and how many there are where these are not all.

    >>> some(["a", "b", "c"], most=2)
    'a, b, ... (3 in all)'
    """
    listed = list(names)
    return ", ".join(listed[:most]) + (f", ... ({len(listed)} in all)" if len(listed) > most else "")
