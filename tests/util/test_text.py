import pytest

from prunewald.util.text import printable


@pytest.mark.parametrize("text", ["", "fc.weight", "λ* größer als 日本", "back\\slash"])
def test_what_can_be_printed_stays(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x07\x00\x9b", "\\x07\\x00\\x9b"),
        ("turned \u202e round", "turned \\u202e round"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    assert printable(text) == shown
    assert shown.encode()


def test_what_is_too_long_is_cut():
    assert printable("0123456789", longest=10) == "0123456789"
    assert printable("0123456789a", longest=10) == "0123456..."
