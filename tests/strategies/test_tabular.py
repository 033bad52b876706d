from dataclasses import dataclass
from typing import ClassVar

from prunewald.strategies.tabular import Tabular


@dataclass(frozen=True)
class Pets(Tabular):
    """A result with a title and two rows."""

    names: tuple[str, ...]
    _left: ClassVar = (0,)

    def _title(self):
        return "a < b"

    def _table(self):
        return ("name", "legs"), [(name, "4") for name in self.names]


def test_a_terminal_and_a_notebook_show_the_same_title_and_cells():
    pets = Pets(("cat", "<dog>"))
    assert str(pets).splitlines() == ["a < b", "name   legs", "-----------", "cat       4", "<dog>     4"]
    html = pets._repr_html_()
    assert html.startswith("<p>a &lt; b</p><table>")
    assert ">&lt;dog&gt;</td>" in html
    assert html.count("<tr>") == 3


def test_it_is_still_plain_data():
    assert repr(Pets(("cat",))) == "Pets(names=('cat',))"
