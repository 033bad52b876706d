"""Many draws of a regression with known zeros, trained all at once; and a table that is added to line by line."""

import csv
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunewald as pw
from benchmarks.bench import environment
from prunewald.core.base import Online, State
from prunewald.pruning.resuming import unpacked
from prunewald.statistics.wald import discoveries, p_value

WEIGHTS = 20
TRUE = torch.where(torch.arange(WEIGHTS) % 2 == 0, 0.0, 0.35)  # half of the weights are zero
FDR = 0.1  # the false discovery rate that is allowed
INPUTS = ("independent", "neighbours 0.5", "neighbours 0.8", "all 0.5")  # which are correlated, and how much


class Data(NamedTuple):
    """As many data sets as there are draws, all of one size."""

    kind: str  # "logistic" or "linear"
    x: Tensor  # draws, samples, weights
    y: Tensor  # draws, samples


class Stacked(nn.Module):
    """One regression a draw, in one parameter of a row each: optimizers work by element, so the rows never meet."""

    def __init__(self, draws: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(draws, WEIGHTS))

    def forward(self, x: Tensor) -> Tensor:
        """The linear predictor of each sample of each draw."""
        return torch.bmm(x, self.weight[:, :, None])[:, :, 0]


def correlation(inputs: str) -> Tensor:
    """The correlation matrix of the inputs."""
    kind, _, strength = inputs.partition(" ")
    if kind == "independent":
        return torch.eye(WEIGHTS, dtype=torch.float64)
    apart = (torch.arange(WEIGHTS)[:, None] - torch.arange(WEIGHTS)).abs()
    return float(strength) ** (apart if kind == "neighbours" else apart.clamp(max=1)).double()


def drawn(kind: str, inputs: str, draws: int, samples: int) -> Data:
    """Data sets with the true weights `TRUE`; with noise of variance one where the regression is linear."""
    g = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(correlation(inputs)).float()
    x = torch.randn(draws, samples, WEIGHTS, generator=g) @ root.T
    mean = x @ TRUE
    if kind == "linear":
        return Data(kind, x, mean + torch.randn(draws, samples, generator=g))
    return Data(kind, x, torch.bernoulli(mean.sigmoid(), generator=g))


def batches(data: Data, size: int, steps: int, shuffled: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of every draw: samples drawn with replacement, or in epochs of another order each."""
    g = torch.Generator().manual_seed(1)
    draws, samples = data.y.shape
    x, y = data.x.reshape(-1, WEIGHTS), data.y.reshape(-1)
    first = (torch.arange(draws) * samples)[:, None]
    for step in range(steps):
        at = step * size % samples
        if shuffled and at == 0:
            order = torch.rand(draws, samples, generator=g).argsort(1)
        chosen = order[:, at : at + size] if shuffled else torch.randint(0, samples, (draws, size), generator=g)
        rows = (chosen + first).reshape(-1)
        yield x[rows].view(draws, size, WEIGHTS), y[rows].view(draws, size)


def take_step(model: Stacked, optimizer: torch.optim.Optimizer, kind: str, x: Tensor, y: Tensor) -> None:
    """One step of every draw on the mean loss of its own batch."""
    loss = F.mse_loss if kind == "linear" else F.binary_cross_entropy_with_logits
    optimizer.zero_grad()
    (loss(model(x), y, reduction="sum") / y.shape[1]).backward()
    optimizer.step()


def optimum(data: Data, iterations: int = 8) -> Stacked:
    """The regressions at their optimum, by Newton's method."""
    model = Stacked(len(data.x))
    x, weight = data.x.double(), torch.zeros(len(data.x), WEIGHTS, 1, dtype=torch.float64)
    for _ in range(iterations):
        mean = x @ weight
        slope = torch.ones_like(mean)
        if data.kind == "logistic":
            mean = mean.sigmoid()
            slope = mean * (1 - mean)
        weight = weight + torch.linalg.solve(x.mT @ (slope * x), x.mT @ (data.y[:, :, None] - mean))
    model.weight.data = weight[:, :, 0].float()
    return model


class Quality(NamedTuple):
    """What is to be known of standard errors, as shares."""

    coverage: float  # of the true weights by 95 % intervals
    called: float  # of the true zeros that differ from 0 at the level 0.05
    false: float  # of true zeros among the discoveries of a draw (Benjamini-Hochberg at `FDR`), mean over draws


def quality(weight: Tensor, se: Tensor, degrees: float | None = None) -> Quality:
    """How well standard errors of a row of weights for each draw do their work."""
    weight, se, null = weight.double(), se.double(), TRUE == 0
    covered = p_value((weight - TRUE) / se, degrees) > 0.05
    p = p_value(weight / se, degrees)
    found = torch.stack([discoveries(draw, FDR) for draw in p]).double()
    false = found[:, null].sum(1) / found.sum(1).clamp(min=1)
    return Quality(float(covered.double().mean()), float((p[:, null] <= 0.05).double().mean()), float(false.mean()))


def watched(pruner: pw.Pruner) -> State:
    """What an estimator has seen of a training."""
    (state,) = unpacked(pruner.state_dict()["states"])
    found: State = state
    return found


def warns(online: Online, state: State) -> bool:
    """Whether an estimator warns of a state."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        online.check(state, {})
    return bool(heard)


class Table:
    """A file of comma-separated lines that grows; what is in it need not be measured again."""

    def __init__(self, path: Path, key: Sequence[str], columns: Sequence[str]) -> None:
        self.path, self.key, self.columns = path, tuple(key), (*key, *columns)
        self.rows: list[dict[str, str]] = []
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
            self.rows = list(csv.DictReader(lines))
        self._said = False

    def has(self, **key: Any) -> bool:
        """Whether there is a line with these values."""
        return any(all(row[name] == str(value) for name, value in key.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        """Write one line, and print it; the environment goes before the first that is added."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        texts = {
            name: str(v) if name in self.key or not isinstance(v, float) else f"{v:.3f}" for name, v in row.items()
        }
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if new:
                writer.writeheader()
            if not self._said:
                file.write(f"# {'; '.join(f'{name}: {value}' for name, value in environment().items())}\n")
                self._said = True
            writer.writerow(texts)
        self.rows.append(texts)
        print(*texts.values(), sep="  ", flush=True)
