"""All that is measured, in an order in which a run that is stopped has the most important first."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import prunewald as pw
from benchmarks.refitting.examples import score, task
from benchmarks.refitting.layerwise import layer, reconstruction
from benchmarks.refitting.networks import NETWORKS
from benchmarks.refitting.records import Record, Records, key, line
from benchmarks.refitting.training import file_of, train_one, trained
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

FEW = ("0.95", "0.8", TWO_FOUR)
MORE = ("0.5", "0.98", "0.9", "0.99")
COUNTS = (128, 8192)
METHODS = ("sparsegpt", "wanda")
FIRST = 3  # networks of which all is measured before there are more
Job = tuple[tuple[str, ...], str, Callable[[Subject], Found]]  # the ways that it measures, a level, how


def _both(name: str) -> tuple[str, str]:
    return name, f"{name}+refit"


def main_jobs(levels: Sequence[str]) -> Iterator[Job]:
    """Ours beside what was published, and beside SparseGPT's mask with our counts."""
    for level in levels:
        for method in METHODS:
            yield (f"published {method}",), level, partial(published, method=method, level=level)
        yield _both("moment"), level, partial(ours, criterion="moment", level=level)
        if level == TWO_FOUR:
            yield ("moment+refit, head dense",), level, partial(head_dense, level=level)
        yield _both("sparsegpt"), level, partial(sparsegpt_mask, level=level)


def criteria_jobs(levels: Sequence[str]) -> Iterator[Job]:
    """Other criteria with our counts."""
    for level in levels:
        for criterion in OTHERS:
            yield _both(criterion), level, partial(ours, criterion=criterion, level=level)


def later_jobs() -> Iterator[Job]:
    """Other numbers of calibration examples, and an epoch of training."""
    for level in FEW:
        yield ("moment+epoch",), level, partial(retrained, level=level)
        for count in COUNTS:
            yield (f"moment+refit@{count}",), level, partial(calibrated, level=level, count=count)


def measure(options: Namespace) -> None:
    """Measure what is not there, on networks that are trained where they are not."""
    phases = (main_jobs(FEW), main_jobs(MORE), criteria_jobs(FEW), later_jobs(), criteria_jobs(MORE))
    jobs = [list(phase) for at, phase in enumerate(phases, 1) if at in options.phases]
    for seeds in (range(min(FIRST, options.seeds)), range(FIRST, options.seeds)):
        for phase in jobs:
            for seed in seeds:
                for name in options.networks:
                    train_one(name, seed, options)
                    _network(name, seed, phase, options)


def _network(name: str, seed: int, jobs: list[Job], options: Namespace) -> None:
    records = Records(options.out, name, seed)
    due = [job for job in jobs if not records.has(*(key(way, job[1]) for way in job[0]))]
    blocks = [level for level in _reconstructed(name, jobs) if not records.has(key("reconstruction", level))]
    if not (due or blocks) or not file_of(options.out, name, seed).exists():
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
    """The share of weights that is left."""
    weights = [layer(model, name).weight for name in subject.layers()]
    return float(sum(int(torch.count_nonzero(w)) for w in weights) / sum(w.numel() for w in weights))


def _reconstructed(name: str, jobs: list[Job]) -> tuple[str, ...]:
    """Levels at which the layers of a transformer are compared, beside the later jobs."""
    last = any(way == "moment+epoch" for ways, *_ in jobs for way in ways)
    return FEW if last and NETWORKS[name].blocks else ()


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
    machine = {name: value for name, value in environment().items() if name != "command"}
    return {"environment": machine, "data": data, "prunewald": pw.__version__}
