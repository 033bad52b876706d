"""Results that are tables: the same title and cells in a terminal and in a notebook."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from html import escape
from typing import ClassVar

from prunewald.util.tables import Cells, html_table, text_table


class Tabular(ABC):
    """A result that prints as a title and a table below it."""

    _left: ClassVar[Collection[int]] = ()  # the columns that hold words; numbers stand to the right

    @abstractmethod
    def _title(self) -> str:
        """What the table is about, in a line or two."""

    @abstractmethod
    def _table(self) -> tuple[Cells, Sequence[Cells]]:
        """The heads of the columns, and the rows."""

    def __str__(self) -> str:
        return f"{self._title()}\n{text_table(*self._table(), left=self._left)}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._title())}</p>{html_table(*self._table(), left=self._left)}"
