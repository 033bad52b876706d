"""One seed of a paired comparison: train once, then prune and retrain by every method at every level."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.lab.architectures import PaperCNN
from prunewald.lab.data import Dataset, fashion_mnist
from prunewald.lab.loop import accuracy, steps, train
from prunewald.lab.pool import Tick

METHODS = ABS, BOOTSTRAP, MOMENT = "ABS", "M&U pseudo bootstrap", "M&U second moment"


@dataclass(frozen=True)
class Settings:
    """What one seed does.

    The two lambda* had the best mean validation accuracy over 80, 90 and 95 % on six networks of other seeds
    (30 epochs, 5 of retraining), among 0, 0.001, 0.01, 0.1, 1 for the pseudo bootstrap and 0, 0.1, 1, 10 for the
    second moment (tools/choose_lam.py). ABS has no such setting. `last` is the paper's B, or all steps where there
    are fewer.
    """

    epochs: int = 30
    retrain_epochs: int = 5
    levels: tuple[float, ...] = (0.5, 0.8, 0.9, 0.95)
    last: int = 200
    lam_bootstrap: float = 0.01
    lam_moment: float = 1.0
    dropout: float = 0.1
    lr: float = 1e-3
    batch_size: int = 128
    data: Path | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "retrain_epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '-')} {getattr(self, name)}: give 1 or more")
        if not self.levels:
            raise ValueError("levels (): give at least one, such as 0.9")
        if len(set(self.levels)) < len(self.levels):
            raise ValueError(f"levels {self.levels}: give each level once")
        for level in self.levels:
            if not 0 < level < 1:
                raise ValueError(f"level {level:g}: give a fraction of the weights between 0 and 1, such as 0.9")


@dataclass(frozen=True)
class Method:
    """A criterion with its uncertainty, under the name the table gives it."""

    name: str
    criterion: Any
    uncertainty: Any = None


@dataclass(frozen=True)
class Cell:
    """Accuracy of one network pruned by one method to one level; test data unless it says validation."""

    method: str
    level: float
    pruned: float
    retrained: float
    validation: float
    sparsity: float


@dataclass(frozen=True)
class Trial:
    """What one seed gave: the dense network, the same after the extra epochs, and the pruned ones."""

    seed: int
    dense: float
    control: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Trained:
    """Everything a cell starts from."""

    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    pruner: dict[str, Any]


def methods(settings: Settings, images: int) -> tuple[Method, ...]:
    """The methods compared, the reference first."""
    total = steps(images, settings.epochs, settings.batch_size)
    window = pw.PseudoBootstrap(last=min(settings.last, total), total_steps=total)
    return (
        Method(ABS, pw.Magnitude()),
        Method(BOOTSTRAP, pw.MagnitudeUncertainty(lam=settings.lam_bootstrap), window),
        Method(MOMENT, pw.MagnitudeUncertainty(lam=settings.lam_moment), pw.SecondMoment()),
    )


@dataclass(frozen=True)
class Keep:
    """Which pruned network of a trial to save, and where."""

    method: str
    level: float
    path: Path


def run_trial(settings: Settings, seed: int, tick: Tick, keep: Keep | None = None) -> Trial:
    """Run one seed; tick(text) is called after every epoch, `ticks(settings)` times."""
    with torch.random.fork_rng(devices=[]):
        return _Run(settings, seed, fashion_mnist(seed, settings.data), tick).trial(keep)


def ticks(settings: Settings) -> int:
    """Count the epochs of one trial, the dense control's included."""
    cells = len(settings.levels) * len(METHODS)
    return settings.epochs + settings.retrain_epochs * (cells + 1)


@dataclass(frozen=True)
class _Run:
    settings: Settings
    seed: int
    data: Dataset
    tick: Tick

    def trial(self, keep: Keep | None) -> Trial:
        ways = methods(self.settings, len(self.data.train.y))
        trained = self.train(next(way for way in ways if way.name == BOOTSTRAP))
        model, optimizer = self.network(trained)
        dense = accuracy(model, *self.data.test)
        self.fit(model, optimizer, self.settings.retrain_epochs, "dense control")
        control = accuracy(model, *self.data.test)
        cells = tuple(self.cell(trained, way, level, keep) for level in self.settings.levels for way in ways)
        return Trial(self.seed, dense, control, cells)

    def train(self, way: Method) -> Trained:
        torch.manual_seed(self.seed)
        model, optimizer = self.network()
        pruner = self.pruner(model, optimizer, way)
        self.fit(model, optimizer, self.settings.epochs, "training")
        return Trained(model.state_dict(), optimizer.state_dict(), pruner.state_dict())

    def cell(self, trained: Trained, way: Method, level: float, keep: Keep | None) -> Cell:
        model, optimizer = self.network(trained)
        pruner = self.pruner(model, optimizer, way)
        if way.name == BOOTSTRAP:
            pruner.load_state_dict(trained.pruner)
        pruner.prune(level)
        pruned = accuracy(model, *self.data.test)
        self.fit(model, optimizer, self.settings.retrain_epochs, f"{level:.0%} {way.name}")
        if keep is not None and (keep.method, keep.level) == (way.name, level):
            pw.save(pruner, keep.path)
        return Cell(
            way.name,
            level,
            pruned,
            accuracy(model, *self.data.test),
            accuracy(model, *self.data.val),
            _zeros(model),
        )

    def network(self, trained: Trained | None = None) -> tuple[PaperCNN, torch.optim.Optimizer]:
        model = PaperCNN(self.settings.dropout)
        optimizer = torch.optim.RMSprop(model.parameters(), lr=self.settings.lr)
        if trained is not None:
            model.load_state_dict(trained.model)
            # load_state_dict keeps the given tensors, which the next cell starts from too.
            optimizer.load_state_dict(copy.deepcopy(trained.optimizer))
        return model, optimizer

    def pruner(self, model: PaperCNN, optimizer: torch.optim.Optimizer, way: Method) -> pw.Pruner:
        return pw.Pruner(model, optimizer, criterion=way.criterion, uncertainty=way.uncertainty, targets=[nn.Linear])

    def fit(self, model: PaperCNN, optimizer: torch.optim.Optimizer, epochs: int, text: str) -> None:
        """Train; every call of the same seed sees the same batches and the same dropout."""
        torch.manual_seed(self.seed)
        train(
            model,
            optimizer,
            *self.data.train,
            epochs,
            self.settings.batch_size,
            generator=torch.Generator().manual_seed(self.seed),
            progress=lambda: self.tick(f"seed {self.seed}, {text}"),
        )


def _zeros(model: nn.Module) -> float:
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    return sum(int((weight == 0).sum()) for weight in weights) / sum(weight.numel() for weight in weights)
