"""Which uncertainties are standard errors, by optimizer: coverage, and true zeros that are called significant.

Draws of logistic and linear regression (1,000 samples of 20 inputs, half of the true weights zero) are trained for 30
epochs, 10 samples a step; then each estimator's sigma makes 95 % intervals for the true weights, and tests them against
0 at the level 0.05. A standard error covers 0.95 and calls 0.05 of the zeros significant. `false discoveries` is the
false discovery rate, with 0.1 allowed (Benjamini-Hochberg over the 20 weights of a draw, half of which are zero: then a
standard error has 0.05): the mean over draws of the share of zeros among what is found. Steps are of a constant size,
or of a tenth of it, or go down to zero in a straight line; samples are drawn with replacement, or in shuffled epochs.
For `SGDAsymptotic` there is one pass over 5,000 samples with steps of rate / t.
Estimators that watch the training do so from its tenth epoch on. The optimizer "optimum" is Newton's method on all
samples. `sigma` is the median of sigma, `seconds a draw` what an estimate took that is made after the training,
`warned` whether one that watched warns.

    python -m benchmarks.coverage                     # about twenty minutes; goes on where it was stopped
    python -m benchmarks.coverage --table FILE        # another table than results/coverage/coverage.csv
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import prunewald as pw
from benchmarks.regressions import (
    WEIGHTS,
    Data,
    Stacked,
    Table,
    batches,
    drawn,
    optimum,
    quality,
    take_step,
    warns,
    watched,
)
from prunewald.core.weights import Weight
from prunewald.ensemble import recipes
from prunewald.uncertainty import Bootstrap, FisherDiagonal, InverseFisher, Online, Sandwich, SGDAsymptotic

DRAWS, SAMPLES, BATCH, EPOCHS, SETTLED = 200, 1000, 10, 30, 10
AFRESH: tuple[Literal["same", "independent"], ...] = ("same", "independent")  # starts of a bootstrap's replicas
FEWER = {f'Bootstrap(replicas=50, start="{start}")': 40 for start in AFRESH}  # draws, of what takes seconds for each
EPOCH = SAMPLES // BATCH
KEY = ("model", "inputs", "optimizer", "steps", "sampling", "estimator")
COLUMNS = ("draws", "coverage", "zeros called", "false discoveries", "sigma", "seconds a draw", "warned")

Optimizers = dict[str, Callable[..., Optimizer]]
OPTIMIZERS: Optimizers = {
    "SGD": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "RMSprop": torch.optim.RMSprop,
    "AdamW": torch.optim.AdamW,
}
RATES = {  # so that each forgets within some twenty steps, and a batch of 200 is long
    "logistic": {"SGD": 0.2, "momentum": 0.02},
    "linear": {"SGD": 0.025, "momentum": 0.0025},
}
ADAPTIVE = 0.02  # the step size of the others
PASSING = 0.75  # the rate of steps of rate / t; the first steps of a logistic regression would be far too large

SAMPLED = {"samples": SAMPLES, "batch_size": BATCH}
MOMENT: dict[str, Any] = {**SAMPLED, "decay": 0.999, "outputs": 1}
PATHS: dict[str, Online] = {
    "PseudoBootstrap(last=200)": pw.PseudoBootstrap(last=200),
    "BatchMeans(length=200)": pw.BatchMeans(**SAMPLED, length=200),
}
WATCHING: dict[str, dict[str, Online]] = {  # what is watched in each model; another estimator is a line here
    "logistic": {"SecondMoment": pw.SecondMoment(**MOMENT, likelihood="binary_cross_entropy")} | PATHS,
    "linear": {"SecondMoment": pw.SecondMoment(**MOMENT, likelihood="squared_error", residual_variance=1.0)} | PATHS,
}
LOSSES = {"logistic": F.binary_cross_entropy_with_logits, "linear": F.mse_loss}


class Training(NamedTuple):
    """One way of training."""

    model: str
    inputs: str
    optimizer: str
    steps: str  # "constant", "small" (a tenth, as constant), "decayed", "rate / t", "none"
    sampling: str = "replacement"  # or "shuffled", "one pass" (over five times as many samples), "all"

    @property
    def rate(self) -> float:
        """The first step size."""
        if self.steps == "rate / t":
            return PASSING
        return RATES[self.model].get(self.optimizer, ADAPTIVE) / (10 if self.steps == "small" else 1)

    @property
    def samples(self) -> int:
        """The size of a data set."""
        return SAMPLES * (5 if self.sampling == "one pass" else 1)

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.samples // BATCH * (1 if self.sampling == "one pass" else EPOCHS)

    def step_size(self, step: int) -> float:
        """The size of a step, counted from 0."""
        if self.steps == "rate / t":
            return self.rate / (step + 1)
        return self.rate * (1 - step / self.total) if self.steps == "decayed" else self.rate

    @property
    def watching(self) -> dict[str, Online]:
        """Who watches it."""
        return WATCHING[self.model] if self.sampling in ("replacement", "shuffled") else {}


def trainings() -> Iterator[Training]:
    """What is measured, the most asked for first."""
    logistic, linear = ("logistic", "independent"), ("linear", "independent")
    for steps in ("constant", "decayed", "small"):
        yield from (Training(*logistic, optimizer, steps) for optimizer in OPTIMIZERS)
    for model, inputs in itertools.product(WATCHING, ("independent", "neighbours 0.5")):
        yield Training(model, inputs, "optimum", "none", "all")
    yield from (Training(*linear, optimizer, "constant") for optimizer in OPTIMIZERS)
    yield from (Training("logistic", "neighbours 0.5", optimizer, "constant") for optimizer in OPTIMIZERS)
    yield Training(*linear, "SGD", "rate / t", "one pass")
    yield from (Training(*logistic, optimizer, "constant", "shuffled") for optimizer in ("Adam", "SGD"))


def trained(way: Training, data: Data) -> tuple[Stacked, dict[str, pw.Pruner]]:
    """The stacked regressions, and who watched them."""
    if way.optimizer == "optimum":
        return optimum(data), {}
    model = Stacked(DRAWS)
    optimizer = OPTIMIZERS[way.optimizer](model.parameters(), lr=way.rate)
    watching: dict[str, pw.Pruner] = {}
    for step, batch in enumerate(batches(data, BATCH, way.total, way.sampling != "replacement")):
        if step == SETTLED * EPOCH:
            named = way.watching.items()
            watching = {n: pw.Pruner(model, optimizer, criterion="wald", uncertainty=e) for n, e in named}
        optimizer.param_groups[0]["lr"] = way.step_size(step)
        take_step(model, optimizer, way.model, *batch)
    return model, watching


def after(way: Training) -> dict[str, Callable[..., dict[str, Tensor]]]:
    """The estimators that are computed from the data when training is over, and for which ways of training."""
    found: dict[str, Callable[..., dict[str, Tensor]]] = {}
    if way.optimizer == "optimum":
        found = {type(e).__name__: e.estimate for e in (FisherDiagonal(), InverseFisher(), Sandwich())}
    elif way[:2] == ("logistic", "independent") and way.steps != "small" and way.sampling == "replacement":
        found = {type(e).__name__: e.estimate for e in (FisherDiagonal(), InverseFisher())}
    if way.steps == "rate / t":
        found = {"SGDAsymptotic": SGDAsymptotic(way.rate, way.total, BATCH).estimate}
    if way == Training("logistic", "independent", "SGD", "constant", "shuffled"):  # as the replicas are trained
        again: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "optimizer": recipes.SGD(lr=way.rate)}
        starts: tuple[Literal["warm", "same", "independent"], ...] = ("warm", *AFRESH)
        for start in starts:
            estimate = partial(Bootstrap(50, start).estimate, **again, progress=False)
            found[f'Bootstrap(replicas=50, start="{start}")'] = estimate
    return found


def estimated(estimate: Callable[..., dict[str, Tensor]], weight: Tensor, data: Data) -> Tensor:
    """Sigma of the first draws, as many as there are rows of weights, by a model of its own each."""
    rows = []
    for row, x, y in zip(weight, data.x, data.y, strict=False):
        single = nn.Linear(WEIGHTS, 1, bias=False).double()
        single.weight.data = row[None].double()
        rows.append(estimate(single, [(x.double(), y[:, None].double())], LOSSES[data.kind])["weight"][0])
    return torch.stack(rows).detach()


def measure(way: Training, table: Table) -> None:
    """Train where a line is missing, and add what is."""
    cell = dict(zip(KEY, way, strict=False))
    names = [*way.watching, *after(way)]
    if all(table.has(**cell, estimator=name) for name in names):
        return
    data = drawn(way.model, way.inputs, DRAWS, way.samples)
    model, watching = trained(way, data)

    for name in names:
        if table.has(**cell, estimator=name):
            continue
        if name in watching:
            online, state = way.watching[name], watched(watching[name])
            sigma = online.sigma(state, Weight("weight", model.weight, None), watching[name].optimizers[0]).sigma
            weight, degrees = online.average(state).get("weight", model.weight.detach()), online.degrees(state)
            more: dict[str, Any] = {"warned": warns(online, state)}
        else:
            began, weight, degrees = time.process_time(), model.weight.detach()[: FEWER.get(name)], None
            sigma = estimated(after(way)[name], weight, data)
            more = {"seconds a draw": (time.process_time() - began) / len(weight)}
        found = quality(weight, sigma, degrees)
        shares = dict(zip(COLUMNS[1:4], found, strict=True))
        table.add(**cell, estimator=name, draws=len(weight), **shares, sigma=f"{float(sigma.median()):.3g}", **more)


def main() -> None:
    """Measure what is missing."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--table", type=Path, default=Path("results/coverage/coverage.csv"))
    table = Table(args.parse_args().table, KEY, COLUMNS)
    for way in trainings():
        measure(way, table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
