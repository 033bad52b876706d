"""Choose the demo's lambda* on validation data, with networks of seeds that the demo does not use.

    python tools/choose_lam.py

For each method and lambda*: validation accuracy after pruning and retraining, mean over 80, 90 and 95 %.
"""

import statistics
from functools import partial

import prunewald as pw
from prunewald.lab.data import fashion_mnist
from prunewald.lab.pool import Tick, cpus, each
from prunewald.lab.loop import accuracy
from prunewald.lab.trial import Method, Settings, _Run, methods
from prunewald.util.progress import progress_bar

SEEDS = range(100, 106)
LEVELS = (0.8, 0.9, 0.95)
GRID = {"M&U pseudo bootstrap": (0.0, 0.001, 0.01, 0.1, 1.0), "M&U second moment": (0.0, 0.1, 1.0, 10.0)}


def one(settings: Settings, seed: int, tick: Tick) -> dict[tuple[str, float], float]:
    """Every cell of the grid for one network."""
    data = fashion_mnist(seed)
    run = _Run(settings, seed, data, tick)
    _, bootstrap, moment = methods(settings, len(data.train.y))
    trained = run.train(bootstrap)
    found = {}
    for way in (bootstrap, moment):
        for lam in GRID[way.name]:
            chosen = Method(way.name, pw.MagnitudeUncertainty(lam=lam), way.uncertainty)
            cells = [run.cell(trained, chosen, level, None).validation for level in LEVELS]
            found[way.name, lam] = statistics.fmean(cells)
    model, _ = run.network(trained)
    found["dense", 0.0] = accuracy(model, *data.val)
    return found


if __name__ == "__main__":
    settings = Settings(levels=LEVELS)
    cells = sum(map(len, GRID.values())) * len(LEVELS)
    epochs = len(SEEDS) * (settings.epochs + cells * settings.retrain_epochs)
    with progress_bar(total=epochs, unit="epoch") as bar:
        results = each(partial(one, settings), SEEDS, min(cpus(), len(SEEDS)), bar)
    for key in results[0]:
        print(f"{key[0]:22}{key[1]:8g}{100 * statistics.fmean(result[key] for result in results):8.2f}")
