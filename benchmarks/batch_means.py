"""How often 95 % intervals from batch means cover, after 1, 2 and 4 epochs, and whether a warning says when not.

Draws of logistic and linear regression (20,000 samples of 20 inputs) are trained for two epochs by SGD of a constant
step size, 20 samples a step drawn with replacement; from there on the path is watched in batches of several lengths.
`before` is the coverage without the iterate's own variance and without lugsail. `warned` is what the estimator says
of all draws together, as of one model of 4,000 weights; `alone` is the share of the draws that it warns of when each is
a model of its own, of 20 weights.

    python -m benchmarks.batch_means                  # about ten minutes; goes on where it was stopped
    python -m benchmarks.batch_means --summary        # what the table says in a few lines
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import prunewald as pw
from benchmarks.regressions import INPUTS, Data, Stacked, Table, batches, drawn, quality, take_step, warns, watched
from prunewald.core.base import State
from prunewald.core.weights import Weight

DRAWS, SAMPLES, BATCH, BEFORE = 200, 20_000, 20, 2
EPOCHS, LENGTHS, FEWEST = (1, 2, 4), (25, 50, 100, 200, 400), 10
SIZES = {"linear": (0.01, 0.025, 0.05), "logistic": (0.1, 0.25)}
TOO_LARGE = (0.5, 1.0)  # on the curved loss of a logistic regression the average of such steps is off the optimum
KEY = ("model", "inputs", "step size", "epochs", "length")
COLUMNS = ("batches", "before", "coverage", "zeros called", "doubling", "offset", "warned", "alone")


def one(state: Any, draw: int) -> Any:
    """The state of a single draw."""
    if isinstance(state, dict):
        return {name: one(value, draw) for name, value in state.items()}
    return state[draw : draw + 1] if isinstance(state, Tensor) else state


def measured(recipe: pw.BatchMeans, state: State, model: Stacked) -> dict[str, Any]:
    """The columns of one line."""
    weight, average = Weight("weight", model.weight, None), recipe.average(state)["weight"]
    degrees = recipe.degrees(state)
    plain = pw.BatchMeans(length=recipe.length).sigma(state, weight, None).sigma
    found = quality(average, recipe.sigma(state, weight, None).sigma, degrees)
    return {
        "batches": state["means"]["count"],
        "before": quality(average, plain * (BATCH * recipe.length / SAMPLES) ** 0.5, degrees).coverage,
        "coverage": found.coverage,
        "zeros called": found.called,
        "doubling": recipe.lengths(state).doubling,
        "offset": recipe.offset(state),
        "warned": warns(recipe, state),
        "alone": sum(warns(recipe, one(state, draw)) for draw in range(len(average))) / len(average),
    }


def path(data: Data, step_size: float, table: Table, cell: dict[str, Any]) -> None:
    """Train, watch, and add a line for each number of epochs and each length of which there are enough batches."""
    model = Stacked(len(data.x))
    optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
    epoch = SAMPLES // BATCH
    recipes = [pw.BatchMeans(samples=SAMPLES, batch_size=BATCH, length=length) for length in LENGTHS]
    watching: list[pw.Pruner] = []
    for step, batch in enumerate(batches(data, BATCH, (BEFORE + EPOCHS[-1]) * epoch), 1):
        take_step(model, optimizer, data.kind, *batch)
        if step == BEFORE * epoch:
            watching = [pw.Pruner(model, optimizer, criterion="wald", uncertainty=recipe) for recipe in recipes]
        epochs, rest = divmod(step, epoch)
        if rest or epochs - BEFORE not in EPOCHS:
            continue
        for recipe, pruner in zip(recipes, watching, strict=True):
            state = watched(pruner)
            setting = cell | {"epochs": epochs - BEFORE, "length": recipe.length}
            if state["step"] >= FEWEST * recipe.length and not table.has(**setting):
                table.add(**setting, **measured(recipe, state, model))


def summary(rows: list[dict[str, str]]) -> None:
    """In how many settings the coverage is within, below or above, and in how many of these a warning came."""
    for epochs in map(str, EPOCHS):
        some = [(float(r["coverage"]), r["warned"] == "True") for r in rows if r["epochs"] == epochs]
        for what, low, high in (("below .92", 0, 0.92), ("within", 0.92, 0.97), ("above .97", 0.97, 1.01)):
            kinds = [[c for c, warned in some if low <= c < high and warned == kind] for kind in (True, False)]
            heard, quiet = (f"{len(k)} ({min(k):.3f}-{max(k):.3f})" if k else "0" for k in kinds)
            print(f"{epochs} epochs, {what}: warned {heard}, not warned {quiet}")


def main() -> None:
    """Measure what is missing."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--table", type=Path, default=Path("results/coverage/batch_means.csv"))
    args.add_argument("--summary", action="store_true", help="measure nothing")
    options = args.parse_args()
    table = Table(options.table, KEY, COLUMNS)
    settings = [(kind, inputs, size) for kind in SIZES for inputs in INPUTS for size in SIZES[kind]]
    settings += [("logistic", "independent", size) for size in TOO_LARGE]
    for setting in () if options.summary else settings:
        cell = dict(zip(KEY, setting, strict=False))
        if not table.has(**cell, epochs=EPOCHS[-1], length=LENGTHS[-1]):
            path(drawn(*setting[:2], DRAWS, SAMPLES), setting[-1], table, cell)
    for name, large in (("steps that suit", False), ("too large steps", True)):
        print(name)
        summary([row for row in table.rows if (float(row["step size"]) in TOO_LARGE) == large])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
