"""All that is measured, in an order in which a run that is stopped has the most important first."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.refitting.examples import score, task
from benchmarks.refitting.layerwise import reconstruction
from benchmarks.refitting.networks import NETWORKS
from benchmarks.refitting.records import Record, Records, key, line
from benchmarks.refitting.training import file_of, trained
from benchmarks.refitting.ways import (
    OTHERS,
    TWO_FOUR,
    Found,
    Subject,
    calibrated,
    head_dense,
    ours,
    published,
    retrained,
    sparsegpt_alone,
    sparsegpt_mask,
)

LEVELS = ("0.95", "0.8", TWO_FOUR, "0.98", "0.9", "0.99", "0.5")
FEW = ("0.95", "0.8", TWO_FOUR)
COUNTS = (128, 8192)
METHODS = ("sparsegpt", "wanda")
Job = tuple[tuple[str, ...], str, Callable[[Subject], Found]]  # the ways that it measures, a level, how


def _both(name: str) -> tuple[str, str]:
    return name, f"{name}+refit"


def first_jobs() -> Iterator[Job]:
    """Ours beside what was published, and every criterion with our counts."""
    for level in LEVELS:
        for method in METHODS:
            yield (f"published {method}",), level, partial(published, method=method, level=level)
        yield _both("moment"), level, partial(ours, criterion="moment", level=level)
        if level == TWO_FOUR:
            yield ("moment+refit, head dense",), level, partial(head_dense, level=level)
        yield _both("sparsegpt"), level, partial(sparsegpt_mask, level=level)
        for criterion in OTHERS:
            if criterion != "moment":
                yield _both(criterion), level, partial(ours, criterion=criterion, level=level)


def later_jobs() -> Iterator[Job]:
    """Other numbers of calibration examples, and an epoch of training."""
    for level in FEW:
        yield ("moment+epoch",), level, partial(retrained, level=level)
        for count in COUNTS:
            yield (f"moment+refit@{count}",), level, partial(calibrated, level=level, count=count)


def measure(options: Namespace) -> None:
    """Measure what is not there."""
    for jobs in (first_jobs, later_jobs):
        for seed in range(options.seeds):
            for name in options.networks:
                if file_of(options.out, name, seed).exists():
                    _network(name, seed, list(jobs()), options)


def _network(name: str, seed: int, jobs: list[Job], options: Namespace) -> None:
    records = Records(options.out, name, seed)
    due = [job for job in jobs if not records.has(*(key(way, job[1]) for way in job[0]))]
    blocks = [level for level in _reconstructed(name, jobs) if not records.has(key("reconstruction", level))]
    if not due and not blocks:
        return
    kept, found = trained(name, seed, options.out), task(NETWORKS[name], seed, options.data, options.text)
    assert found is not None, "a network of text was trained on it"
    subject = Subject(name, seed, kept, found)
    records.write(
        {key("dense", "0"): line(Record(name, seed, "dense", "0", **kept["dense"], kept=1.0, seconds=kept["seconds"]))}
    )
    for ways, level, job in due:
        new = {}
        for way, model, seconds in job(subject):
            assert way in ways
            own = Record(
                name, seed, way, level, **score(model, found.test), kept=_kept(model, subject), seconds=seconds
            )
            new[key(way, level)] = line(own)
            print(
                f"{name} {seed} {level:>4} {way}: {own.accuracy:.2f} %, {own.kept:.3%} kept, {seconds:.1f} s",
                flush=True,
            )
        records.write(new)
    for level in blocks:
        records.write({key("reconstruction", level): _reconstruct(subject, level)})


def _kept(model: nn.Module, subject: Subject) -> float:
    weights = [model.get_submodule(name).weight for name in subject.layers()]
    return sum(int(torch.count_nonzero(w)) for w in weights) / sum(w.numel() for w in weights)  # type: ignore[arg-type, operator]


def _reconstructed(name: str, jobs: list[Job]) -> tuple[str, ...]:
    """Levels at which the layers of a transformer are compared, beside the first jobs."""
    first = any(way == "moment" for ways, *_ in jobs for way in ways)
    return FEW if first and NETWORKS[name].blocks else ()


def _reconstruct(subject: Subject, level: str) -> dict[str, Any]:
    """SparseGPT's mask, found on dense inputs: its update and our refit, to the same targets, on test examples."""
    dense, _ = subject.restored()
    names, held = subject.prunable(level), subject.task.test.batches(64)[:16]
    found = {way: reconstruction(dense, model, names, held) for way, model in sparsegpt_alone(subject, level)}
    print(subject.name, subject.seed, level, {w: sum(e.values()) / len(e) for w, e in found.items()}, flush=True)
    layers = {name: {way: errors[name] for way, errors in found.items()} for name in names}
    return {"network": subject.name, "seed": subject.seed, "level": level, "layers": layers}


def about(options: Namespace) -> dict[str, Any]:
    """What the records are of, which stands in their file."""
    from benchmarks.bench import environment

    known = {name: task(NETWORKS[name], 0, options.data, options.text) for name in options.networks}
    data = {name: found.source for name, found in known.items() if found is not None}
    return {"environment": environment(), "data": data, "prunewald": pw.__version__}
