from html.parser import HTMLParser

import pytest

from prunewald.util.tables import html_table, text_table

HEAD, ROWS, TOTAL = ("layer", "kept", "by"), [("fc1", "1,024", "tau"), ("fc10", "9", "")], ("total", "1,033", "")


def test_columns_are_as_wide_as_they_need_to_be():
    assert text_table(HEAD, ROWS, left=(0, 2), total=TOTAL).splitlines() == [
        "layer   kept  by",
        "-----------------",
        "fc1    1,024  tau",
        "fc10       9",
        "-----------------",
        "total  1,033",
    ]


def test_without_rows_there_is_the_head():
    assert text_table(("a", "b"), []) == "a  b\n----"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        text_table(HEAD, [("fc1", "1,024")])


class Cells(HTMLParser):
    """The texts of all cells and the tags that were opened and closed."""

    def __init__(self, html):
        super().__init__()
        self.texts, self.open, self.tags = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs).get("style")))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1], data))


def test_html_has_the_same_cells_and_closes_its_tags():
    cells = Cells(html_table(HEAD, ROWS, left=(0, 2), total=TOTAL))
    assert not cells.open
    assert [text for _, text in cells.texts] == [text for row in (HEAD, *ROWS, TOTAL) for text in row if text]
    assert {tag for tag, text in cells.texts if text in (*HEAD, *TOTAL)} == {"th"}
    assert [style for tag, style in cells.tags if tag == "td"][:3] == [
        "text-align:left",
        "text-align:right",
        "text-align:left",
    ]


def test_what_stands_in_a_cell_is_never_markup():
    html = html_table(("<b>",), [("<script>alert('&')</script>",)])
    assert "<b>" not in html
    assert "<script" not in html
    assert Cells(html).texts[1] == ("td", "<script>alert('&')</script>")


def test_a_cell_is_one_line_of_bounded_length():
    text = text_table(("name", "n"), [("\x1b[2J\n", "1"), ("x" * 1000, "2"), *[("y", "3")] * 10])
    assert "\x1b" not in text
    assert "\\x1b[2J\\n" in text
    assert len(text.splitlines()) == 14
    assert len(text) < 14 * 220
