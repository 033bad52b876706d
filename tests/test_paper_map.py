"""Every name, example and test that docs/paper-map.md leads to is there."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import prunewald as pw
from prunewald.lab.settings import EXPERIMENTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/paper-map.md"
ROWS = [
    re.split(r"(?<!\\)\|", line)[1:-1]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| in the paper")
]


def spans(cell):
    """The code in a cell, less what is in brackets."""
    return re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", cell))


def resolve(name):
    """What a dotted name stands for: attributes, and modules on the way to them."""
    head, *words = name.split(".")
    assert head in ("pw", "prunewald"), name
    found, path = pw, "prunewald"
    for word in words:
        path = f"{path}.{word}"
        try:
            found = getattr(found, word)
        except AttributeError:
            found = import_module(path)
    return found


@cache
def functions_of(file):
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_has_its_tables():
    assert len(ROWS) > 30
    assert {len(row) for row in ROWS} == {4}
    whole = PAGE.read_text()
    for equation in (3, 4, 5, 7, 8, 9, 10):
        assert f"eq. {equation}" in whole
    for author in ("Toulis & Airoldi", "White", "Luo", "See", "Narang", "Hassibi", "Zhu & Gupta", "Guo", "Han"):
        assert f"- {author}" in whole, "is in the references"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip()[:40])
def test_a_row_leads_to_a_name_an_example_and_a_test(row):
    _, names, examples, checks = row
    assert spans(names)
    assert "](" in examples
    assert spans(checks)
    for name in spans(names):
        if name.startswith("prunewald reproduce "):
            assert name.split()[-1] in EXPERIMENTS
        else:
            assert resolve(name) is not None
    for link in re.findall(r"\]\(([^)]+)\)", examples):
        file, _, anchor = link.partition("#")
        page = PAGE.parent / file
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link
    for check in spans(checks):
        file, _, test = check.partition("::")
        assert test in functions_of(file), check
