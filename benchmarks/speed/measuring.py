"""One cell after the other: times of all ways in turns, differences of outputs, sizes, work, and memory."""

import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import environment, turns
from benchmarks.speed.memory import peak
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.ways import DENSE, Subject, files, loaded, logits
from prunewald.model.uses import uses

_REST = 0.01  # seconds between turns
_LEAST = 0.02  # seconds of one turn
Row = dict[str, Any]


def cells(name: str, options: Namespace) -> Iterator[tuple[str, dict[str, Row]]]:
    """Every cell of a network, with its rows."""
    for level in options.levels or NETWORKS[name].levels:
        with tempfile.TemporaryDirectory() as folder:
            subject = Subject(NETWORKS[name], level, Path(folder))
            for batch in options.batches:
                subject.batch = batch
                for threads in options.threads:
                    torch.set_num_threads(threads)
                    rows = cell(subject, threads, options.blocks)
                    if threads == 1:
                        for way, row in rows.items():
                            if "seconds" in row:
                                row["peak"] = peak(name, way, subject.file(way), batch)
                    yield f"{level:g}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}", rows


def cell(subject: Subject, threads: int, blocks: int) -> dict[str, Row]:
    """All ways at one level, number of threads and size of batch."""
    found = dict(files(subject))
    rows: dict[str, Row] = {way: {"left out": why} for way, why in found.items() if isinstance(why, str)}
    there = {way: file for way, file in found.items() if isinstance(file, Path)}
    ways = {way: loaded(way, file, threads, subject.x) for way, file in there.items()}
    wanted = logits(ways[DENSE]())
    times = _times(ways, blocks)
    for way, file in there.items():
        difference = float((logits(ways[way]()) - wanted).abs().max() / wanted.abs().max())
        rows[way] = {"batch": subject.batch, "difference": difference, **times[way]}
        rows[way] |= _work(subject, "shrunk" in way, subject.sparse if "sparse" in way else set())
        rows[way]["file"] = file.stat().st_size
        if way in subject.said:
            rows[way]["chosen"] = subject.said[way]
    return {way: rows[way] for way in found}


def _times(ways: dict[str, Any], blocks: int) -> dict[str, Row]:
    """Medians, and against dense the median and the quartiles of ratios within the same block."""
    once = statistics.median(turns({DENSE: ways[DENSE]}, 5, 1)[DENSE])
    times = turns(ways, blocks, max(1, round(_LEAST / once)), _REST)
    found = {}
    for way, own in times.items():
        ratios = [dense / mine for dense, mine in zip(times[DENSE], own, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        found[way] = {"seconds": statistics.median(own), "faster": middle, "low": low, "high": high}
    return found


def _work(subject: Subject, shrunk: bool, sparse: Set[str]) -> Row:
    """Parameters and multiply-adds of one example: all of them, and of layers that run sparse those of no zero."""
    model = subject.small if shrunk else subject.model
    used, found = uses(model, subject.network.example(2)), dict(model.named_parameters())

    def count(name: str) -> int:
        return int(torch.count_nonzero(found[name])) if name in sparse else found[name].numel()

    macs = sum(times * count(name) for name, times in used.items())
    return {"parameters": sum(map(count, found)), "macs": macs}


def measure(name: str, options: Namespace, before: Row) -> Iterator[Row]:
    """What is known of a network, after each cell."""
    found: dict[str, Any] = {
        "title": NETWORKS[name].title,
        "environment": environment(),
        "cells": dict(before.get("cells", {})),
    }
    for title, rows in cells(name, options):
        found["cells"][title] = rows
        said = ", ".join(f"{way} {row['faster']:.2f}" for way, row in rows.items() if "faster" in row)
        print(f"{name} {title}: {said}", flush=True)
        yield found
