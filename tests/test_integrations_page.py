"""Cells of the table in docs/integrations.md lead to tests that are there; its versions are those that are pinned."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/integrations.md"
LINK = re.compile(r'^\[[^\]]+\]\(\.\./(?P<file>[^ )]+) "(?P<test>\w+)"\)$')
FRAMEWORKS = {"Lightning", "Transformers", "Accelerate", "PEFT", "torch.nn.utils.prune", "Torch-Pruning"}


def table():
    """The table by framework, and by feature."""
    rows = [
        line.strip("|").split("|")
        for line in PAGE.read_text().split("## What works where")[1].splitlines()
        if line[:1] == "|"
    ]
    head, _, *body = [[cell.strip() for cell in row] for row in rows]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


CELLS = [
    pytest.param(framework, cell, id=f"{framework}, {feature}")
    for framework, features in table().items()
    for feature, cell in features.items()
    if feature != "tested version" and cell != "–"
]


@cache
def functions_of(file):
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


def test_all_are_in_the_table_and_none_is_without_a_way_to_attach():
    assert table().keys() == FRAMEWORKS | {"a loop of your own"}
    assert all(features["attach"] != "–" for features in table().values())


@pytest.mark.parametrize(("framework", "cell"), CELLS)
def test_a_cell_leads_to_a_test(framework, cell):
    link = LINK.match(cell)
    assert link, f"{framework}: {cell} names no test"
    assert link["test"].startswith("test_")
    assert link["test"] in functions_of(link["file"])


def test_the_versions_are_those_that_the_tests_run_with():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for framework, features in table().items():
        package, version = features["tested version"].split()
        assert pinned[package] == version or pinned[package].startswith(f"{version}."), framework
