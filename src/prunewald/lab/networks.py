"""Networks of one experiment: what they are trained on, and how many of them are trained and measured at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from prunewald.core.base import Online
from prunewald.ensemble import SGD, AdamW, Recipe, Result, RMSprop, train_many
from prunewald.ensemble.chunks import memory
from prunewald.ensemble.evaluation import accuracies
from prunewald.ensemble.replicas import build, tensors
from prunewald.lab.architectures import MLP, VGG11, PaperCNN, SmallAlexNet
from prunewald.lab.data import Raw, split
from prunewald.lab.measuring import Gathered, measured
from prunewald.lab.methods import WATCHED, targets_of
from prunewald.lab.newer import ResNet8, Transformer
from prunewald.lab.settings import Settings

Table = dict[str, Tensor]
_BATCH = 128  # images of a pass at the trained network
_SMALL = 100_000  # parameters


def collected(settings: Settings) -> tuple[str, ...]:
    """The estimates of a training, in order; a retraining has all but the last."""
    return ("pseudo", "moment", *(WATCHED if settings.watch else ()), "every")


def model_of(settings: Settings, classes: int) -> Callable[[], nn.Module]:
    """A function that builds the experiment's network, for `train_many`."""
    if settings.network != "paper":
        newer = {"resnet": ResNet8, "transformer": Transformer}
        channels = 1 if settings.experiment in ("fashion-mnist", "mnist") else 3
        side = settings.side if settings.experiment == "imagenet100" else 32 if channels == 3 else 28
        return partial(newer[settings.network], channels, side, classes, settings.dropout)
    if settings.experiment == "imagenet100":
        return partial(VGG11, classes, settings.side, settings.dropout)
    kinds: dict[str, Callable[..., nn.Module]] = {"fashion-mnist": PaperCNN, "cifar10": SmallAlexNet, "mnist": MLP}
    return partial(kinds[settings.experiment], settings.dropout)


def optimizer_of(settings: Settings, rate: float = 1.0) -> Recipe:
    """The optimizer of an experiment, with so many times its learning rate."""
    lr, decay = rate * settings.lr, settings.weight_decay
    if settings.optimizer == "sgd":
        return SGD(lr=lr, momentum=settings.momentum, weight_decay=decay)
    return (AdamW if settings.optimizer == "adamw" else RMSprop)(lr=lr, weight_decay=decay)


@dataclass(frozen=True)
class Networks:
    """Trains and measures networks by their seeds; all data lie on the device, as numbers in [0, 1]."""

    settings: Settings
    make: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    raw: Raw
    how: dict[str, Any]  # more arguments of train_many: executor, address, progress

    @classmethod
    def of(cls, settings: Settings, raw: Raw, device: torch.device, **how: Any) -> "Networks":
        """Networks of an experiment, with its data on the device; `how` are more arguments of `train_many`."""
        x, test = (part.x.to(device).float().div_(255) for part in (raw.train, raw.test))
        if device.type == "cpu":
            # The faster way for every network here; and what the clock decides would not be the same in every run.
            how = {"how": "loop"} | how
        make = model_of(settings, len(raw.classes))
        return cls(settings, make, x, raw.train.y.to(device), test, raw.test.y.to(device), raw, how)

    @cached_property
    def most(self) -> int:
        """How many networks main memory can hold with all that is kept of them, at most a thousand."""
        parameters = sum(param.numel() for param in build(self.make, 0).parameters())
        # Weights, moments and masks before and after, and three estimates.
        return max(1, min(1000, memory(torch.device("cpu")) // (64 * parameters)))

    def _steps(self, epochs: int) -> int:
        return epochs * -(-self.train_rows([0]).shape[1] // self.settings.batch_size)

    def train_rows(self, seeds: Sequence[int]) -> Tensor:
        """Which images each network is trained on."""
        rows = torch.stack([split(self.raw, seed).train for seed in seeds])
        count = min(self.settings.images or rows.shape[1], rows.shape[1])
        return rows[:, torch.arange(count) * rows.shape[1] // count]  # of all classes, also where they are in order

    @cached_property
    def weights(self) -> list[str]:
        """The names of the weights that are pruned."""
        with pw.Pruner(build(self.make, 0), criterion="magnitude", **targets_of(self.settings.prune)) as pruner:
            return list(pruner.targets())

    @cached_property
    def chooses_on(self) -> torch.device:
        """Where masks are found: of a small network on the CPU, which takes less time than asking a GPU so often."""
        count = sum(param.numel() for param in build(self.make, 0).parameters())
        return self.x.device if count > _SMALL else torch.device("cpu")

    @cached_property
    def normalised(self) -> bool:
        """Whether the network has BatchNorm."""
        return any(name.endswith("running_mean") for name, _ in build(self.make, 0).named_buffers())

    def _window(self, epochs: int) -> list[Online]:
        """What watches a training and its retrainings."""
        steps, watch = self._steps(epochs), self._steps(self.settings.watch)
        gathered = [Gathered(what, min(watch, steps - 1), steps) for what in WATCHED] if watch else []
        return [pw.PseudoBootstrap(last=min(self.settings.last, steps)), pw.SecondMoment(), *gathered]

    def dense(self, seeds: Sequence[int], folder: Path | None = None) -> Result:
        """Train networks from scratch and collect estimates; `folder` keeps what is needed to go on after a kill."""
        epochs, last = self.settings.epochs, min(self.settings.last, self._steps(self.settings.epochs))
        collect = [*self._window(epochs), pw.PseudoBootstrap(every=max(1, self._steps(epochs) // last))]
        return self._train(seeds, self.train_rows(seeds), epochs, folder, collect=collect)

    def retrained(
        self,
        start: Result,
        masks: Table,
        first_epoch: int,
        folder: Path | None = None,
        *,
        collect: bool,
        rate: float = 1.0,
    ) -> Result:
        """Train networks on with what the masks leave of them; those of one seed see the same batches.

        `rate` is a factor of the learning rate.
        """
        epochs = self.settings.retrain_epochs
        window = self._window(epochs) if collect else []
        rows = self.train_rows(start.seeds)
        more: dict[str, Any] = {
            "start": start,
            "masks": masks,
            "first_epoch": first_epoch,
            "collect": window,
            "rate": rate,
        }
        return self._train(start.seeds, rows, epochs, folder, **more)

    def replicas(self, trained: Result, start: str, count: int, folder: Path | None = None) -> Result:
        """Train `count` bootstrap replicas of each network; they are rows of the result, network by network."""
        rows, seeds = [], []
        for seed, own in zip(trained.seeds, self.train_rows(trained.seeds), strict=True):
            generator = torch.Generator().manual_seed(seed)
            rows.append(own[torch.randint(len(own), (count, len(own)), generator=generator)])
            seeds += [1_000_000 + 1000 * seed + b for b in range(count)]
        each = torch.arange(len(trained)).repeat_interleave(count)
        epochs = self.settings.epochs
        if start == "warm":
            tenth = max(1, epochs // 10)
            begin: Any = trained.rows(each, seeds)
            return self._train(seeds, torch.cat(rows), tenth, folder, start=begin, first_epoch=epochs)
        # The same start: the initialisation of the network itself.
        begin = "independent" if start == "independent" else self._initial(trained.seeds, each)
        return self._train(seeds, torch.cat(rows), epochs, folder, start=begin)

    def _initial(self, seeds: Sequence[int], each: Tensor) -> Table:
        built = [tensors(build(self.make, seed)) for seed in seeds]
        return {name: torch.stack([b[name].detach() for b in built])[each] for name in built[0]}

    def _train(
        self, seeds: Sequence[int], rows: Tensor, epochs: int, folder: Path | None, *, rate: float = 1.0, **more: Any
    ) -> Result:
        return train_many(
            self.make,
            self.x,
            self.y,
            seeds=seeds,
            resample=rows,
            epochs=epochs,
            batch_size=self.settings.batch_size,
            optimizer=optimizer_of(self.settings, rate),
            keep_optimizer=True,
            folder=None if "executor" in self.how else folder,  # a cluster trains what was lost again
            **more,
            **self.how,
        )

    def measured(self, what: str, result: Result, r: int, masks: Table | None) -> Table:
        """Scores or sigmas by a pass over training images at the network in row `r` of a result."""
        model = result.module(r).to(self.x.device)
        own = None if masks is None else {name: mask.to(self.x.device) for name, mask in masks.items()}
        return measured(what, model, self._calibration(result.seeds[r], _BATCH), self.settings.prune, own)

    def recalibrated(self, state: Table, seeds: Sequence[int]) -> list[float] | None:
        """Test accuracies with statistics of BatchNorm measured anew; None for networks without it."""
        if not self.normalised:
            return None
        model, buffers = build(self.make, 0).to(self.x.device), []
        for r, seed in enumerate(seeds):
            model.load_state_dict({name: tensor[r] for name, tensor in state.items()})
            pw.recalibrate(model, self._calibration(seed, 4 * _BATCH))
            buffers.append({name: buffer.clone() for name, buffer in model.named_buffers()})
        found = {name: torch.stack([own[name] for own in buffers]) for name in buffers[0]}
        return self.test(state | {name: buffer.cpu() for name, buffer in found.items()})

    def _calibration(self, seed: int, size: int) -> list[tuple[Tensor, Tensor]]:
        """Training images of a network in batches, drawn by its seed."""
        rows = self.train_rows([seed])[0]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        rows = rows[order[: self.settings.calibration]].to(self.x.device)
        return [(self.x[some], self.y[some]) for some in rows.tensor_split(max(1, len(rows) // size))]

    def test(self, state: Table) -> list[float]:
        """The test accuracy of each network of a state."""
        return [float(a) for a in accuracies(self.make, state, self.test_x, self.test_y)]

    def validation(self, state: Table, seeds: Sequence[int]) -> list[float]:
        """Accuracies on each network's own validation images."""
        rows = torch.stack([split(self.raw, seed).val for seed in seeds])
        return [float(a) for a in accuracies(self.make, state, self.x, self.y, rows=rows)]

    def costs(self) -> dict[str, int]:
        """Multiplications of each layer's weight for one image, by parameter name."""
        model, found = build(self.make, 0).eval(), {}

        def count(name: str) -> Callable[[Any, Any, Tensor], None]:
            def hook(module: Any, inputs: Any, output: Tensor) -> None:
                uses = output[0].numel() // len(module.weight)
                found[f"{name}.weight"] = module.weight.numel() * uses

            return hook

        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(count(name))
        with torch.no_grad():
            model(self.x[:1].cpu())
        return found
