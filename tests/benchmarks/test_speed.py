"""The benchmark of speed: what does not hold comes first, and the table and the figure are of its numbers."""

import json
from pathlib import Path
from typing import Any

from benchmarks.speed.tables import slower, table

RESULTS = Path(__file__).parents[2] / "results"
NUMBERS = RESULTS / "benchmarks/speed.json"


def row(faster: float, **more: Any) -> dict[str, Any]:
    own = {"batch": 64, "seconds": 0.001 / faster, "faster": faster, "low": faster - 0.01, "high": faster + 0.01}
    return own | {"parameters": 10, "macs": 20.0, "difference": 0.0, "file": 3_000_000} | more


def found(noise: float = 1.0, **rows: dict[str, Any]) -> dict[str, Any]:
    cells = {"0.9, batch 64, 1 thread": {"dense": row(1.0), "dense, again": row(noise), **rows}}
    return {"mlp": {"title": "MLP", "cells": cells}}


def test_a_way_that_promises_not_to_be_slower_and_is_comes_first():
    numbers = found(run_sparse=row(0.9), shrunk=row(1.1))
    assert [(name, way) for name, _, way, _ in slower(numbers)] == [("mlp", "run_sparse")]
    assert table(numbers).splitlines()[2] == "  mlp 0.9, batch 64, 1 thread: run_sparse 0.90"


def test_what_two_equal_rows_differ_by_is_noise():
    assert not list(slower(found(noise=0.85, run_sparse=row(0.9))))
    assert table(found(noise=0.85, run_sparse=row(0.9))).splitlines()[2] == "  none"


def test_onnxruntime_promises_nothing():
    assert not list(slower(found(onnxruntime=row(0.5))))


def test_a_line_has_throughput_and_what_was_left_out_says_why():
    text = table(found(run_sparse=row(2.0, peak=5e6), shrunk={"left out": "single weights were pruned"}))
    line = next(line.split() for line in text.splitlines() if line.startswith("  run_sparse"))
    assert line[1] == "0.500"
    assert line[6:9] == ["128,000", "5.0", "3.0"]
    assert "  shrunk                        left out: single weights were pruned" in text.splitlines()


def test_the_table_is_of_the_numbers():
    from benchmarks.speed.networks import NETWORKS

    numbers = json.loads(NUMBERS.read_text())
    assert table({name: numbers[name] for name in NETWORKS}) == (RESULTS / "speed/table.txt").read_text()


def test_the_figure_has_every_way_and_names_the_levels():
    from benchmarks.speed.figure import _LOOKS, draw

    points = [[n, way, level, 90.0, 1e-4 * (1 - level)] for n in _LOOKS for way in _LOOKS[n] for level in (0.0, 0.9)]
    first, second = draw(points).axes
    assert [text.get_text() for text in first.texts] == ["0", "90"]
    assert len(first.lines) == len(_LOOKS["mlp"])
    assert len(second.lines) == len(_LOOKS["resnet"])
