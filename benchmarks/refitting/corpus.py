"""Text without markup, in bytes: the documentation of Python, as Debian's package python3-doc installs it."""

import hashlib
from html.parser import HTMLParser
from pathlib import Path

import torch
from torch import Tensor

DOCUMENTATION = Path("/usr/share/doc/python3/html")
PARTS = ("tutorial", "howto", "reference", "library")
LENGTH = 128  # bytes of a sequence
_HELD = 20  # every such page is held out
_SILENT = {"script", "style", "head", "nav"}


class _Words(HTMLParser):
    """What stands between the tags of a page, but for navigation and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in _SILENT

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in _SILENT

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words += data.split()


def plain_text(page: str) -> str:
    """The text of a page, with single spaces.

    >>> plain_text("<head>no</head><p>A <b>word</b>,\\n and more</p>")
    'A word , and more'
    """
    parser = _Words()
    parser.feed(page)
    return " ".join(parser.words)


def sequences(folder: Path) -> tuple[Tensor, Tensor, str] | None:
    """Sequences of bytes to train on, those of held-out pages, and what they are; None where there are no pages."""
    pages = [page for part in PARTS for page in sorted((folder / part).glob("*.html"))]
    if not pages:
        return None
    texts = [plain_text(page.read_text(encoding="utf-8", errors="replace")) for page in pages]
    train, held = (_cut([t for i, t in enumerate(texts) if (i % _HELD == 0) == out]) for out in (False, True))
    digest = hashlib.sha256("".join(texts).encode()).hexdigest()[:16]
    return train, held, f"{len(pages)} pages of Python's documentation, {sum(map(len, texts)):,} letters, {digest}"


def _cut(texts: list[str]) -> Tensor:
    bytes_ = torch.frombuffer(bytearray("\n".join(texts).encode()), dtype=torch.uint8)
    return bytes_[: len(bytes_) // LENGTH * LENGTH].view(-1, LENGTH).long()
