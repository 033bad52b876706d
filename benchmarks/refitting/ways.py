"""The ways to prune one trained network without training it again, ours and those that were published."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import prunewald as pw
from benchmarks.published import sparsegpt, wanda
from benchmarks.refitting.examples import Task, epoch, forward
from benchmarks.refitting.layerwise import as_matrix, as_weight, grams, layer, layers, prune_in_order
from benchmarks.refitting.networks import NETWORKS, Network
from benchmarks.refitting.training import restored

TWO_FOUR = "2:4"
CALIBRATION = 1024
OTHERS = ("wald", "abs", "wanda")  # criteria beside the second moment
Found = Iterator[tuple[str, nn.Module, float]]  # the name of a way, the network that it gives, seconds


@dataclass
class Subject:
    """A trained network with its examples; every way begins with it anew."""

    name: str
    seed: int
    kept: dict[str, Any]
    task: Task
    known: dict[str, Any] = field(default_factory=dict)  # what several ways need

    @property
    def network(self) -> Network:
        """What is known of it by its name."""
        return NETWORKS[self.name]

    def restored(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The network and its optimizer as they were after training."""
        model, optimizer = restored(self.name, self.seed, self.kept)
        return model.eval(), optimizer

    def once(self, what: str, make: Callable[[], Any]) -> Any:
        """Make something only once."""
        if what not in self.known:
            self.known[what] = make()
        return self.known[what]

    def batches(self, count: int = CALIBRATION) -> list[Any]:
        """Calibration examples; of sequences a quarter as many."""
        own = count // self.network.positions
        return self.once(f"batches {count}", lambda: self.task.calibration(own, self.seed))  # type: ignore[no-any-return]

    def layers(self) -> list[str]:
        """The layers in the order in which they are called."""
        return self.once("layers", lambda: layers(self.restored()[0], self.batches()[0]))  # type: ignore[no-any-return]

    def divisible(self) -> list[str]:
        """Those whose inputs or channels come in fours."""
        model = self.restored()[0]
        return [name for name in self.layers() if layer(model, name).weight.shape[1] % 4 == 0]

    def prunable(self, level: str) -> list[str]:
        """The layers that are pruned."""
        return self.divisible() if level == TWO_FOUR else self.layers()

    def recalibrate(self, model: nn.Module, most: int | None = None) -> None:
        """Measure BatchNorm's statistics anew, if it has any, on all calibration batches or the first `most`."""
        if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
            pw.recalibrate(model, self.batches()[:most])
            model.eval()


def published(subject: Subject, method: str, level: str) -> Found:
    """SparseGPT or Wanda as published: each layer to the same sparsity, the last left dense."""
    model, _ = subject.restored()
    began = time.process_time()
    names = [name for name in subject.prunable(level) if name != subject.network.head]
    _prune_as_published(subject, model, names, lambda name: _share(level), method)
    yield f"published {method}", model, time.process_time() - began


def _share(level: str) -> Any:
    return (2, 4) if level == TWO_FOUR else float(level)


def _prune_as_published(
    subject: Subject, model: nn.Module, names: list[str], share: Callable[[str], Any], method: str
) -> None:
    def one(name: str, weight: Tensor, gram: Tensor) -> Tensor:
        if method == "sparsegpt":
            return sparsegpt(weight, gram, share(name))
        return weight * wanda(weight, gram.diagonal().sqrt(), share(name))

    batches = subject.batches()
    prune_in_order(model, names, subject.network.blocks, batches, one, lambda: subject.recalibrate(model, 1))
    subject.recalibrate(model)


@contextmanager
def _pruner(subject: Subject, criterion: str, level: str, but: tuple[str, ...] = ()) -> Iterator[pw.Pruner]:
    """A Pruner of the trained network, which has our counts."""
    model, optimizer = subject.restored()
    chosen: dict[str, Any] = {}
    if criterion in ("abs", "wanda"):
        chosen["criterion"] = criterion
    elif criterion == "wald":
        sigma = subject.once("wald", lambda: _wald(subject))
        chosen |= {"criterion": "wald", "uncertainty": sigma}
    if level == TWO_FOUR:
        left = [name for name in subject.layers() if name not in subject.divisible()]
        chosen |= {"pattern": "n-of-m", "ignore": [f"{name}.weight" for name in (*left, *but)]}
    with pw.Pruner(model, optimizer, **chosen) as pruner:
        if criterion == "wanda":
            with torch.no_grad():
                for batch in subject.batches():
                    forward(model, batch)
        yield pruner


def _wald(subject: Subject) -> Any:
    """The roots of [G^-1]_jj for each weight, G the Gram matrix of its layer's inputs, with SparseGPT's damping.

    Where there is a bias, which takes the mean, G is that of the deviations from it. All rows of a layer have the same.
    """
    model, _ = subject.restored()
    found = {}
    for name, sums in grams(model, subject.layers(), subject.batches(), bias=True).items():
        module = layer(model, name)
        gram, damping = sums[:-1, :-1].clone(), 0.01 * sums.diagonal()[:-1].mean()
        if module.bias is not None:
            gram -= torch.outer(sums[-1, :-1], sums[-1, :-1]) / sums[-1, -1]
        gram.diagonal().add_(damping)
        errors = torch.linalg.inv(gram).diagonal().sqrt().masked_fill(sums.diagonal()[:-1] == 0, torch.inf)
        errors = errors.to(module.weight.dtype).expand(len(module.weight), -1)
        found[f"{name}.weight"] = as_weight(module, errors.contiguous())
    return found


def _prune(pruner: pw.Pruner, level: str) -> None:
    pruner.prune(None if level == TWO_FOUR else float(level))


def ours(subject: Subject, criterion: str, level: str) -> Found:
    """Our counts, |w| shared out by LAMP, and a criterion; then refitted."""
    began = time.process_time()
    with _pruner(subject, criterion, level) as pruner:
        masks = pruner.choose(_level(level))[0]
    with _pruner(subject, "abs", level) as pruner:  # one that watches nothing, whoever chose
        pruner.set_masks(masks)
        yield from _both(subject, pruner, criterion, began)


def _both(subject: Subject, pruner: pw.Pruner, name: str, began: float) -> Found:
    """What was pruned, and refitted."""
    model = pruner.model
    before = {n: buffer.clone() for n, buffer in model.named_buffers()}
    seconds = time.process_time() - began
    subject.recalibrate(model)
    yield name, model, seconds
    with torch.no_grad():
        for n, buffer in model.named_buffers():
            buffer.copy_(before[n])
    yield refitted(subject, pruner, f"{name}+refit", seconds)


def refitted(
    subject: Subject, pruner: pw.Pruner, name: str, seconds: float, count: int = CALIBRATION
) -> tuple[str, nn.Module, float]:
    """What a Pruner left, refitted."""
    began = time.process_time()
    pw.refit(pruner, subject.batches(count), dense=subject.kept["model"])
    return name, pruner.model.eval(), seconds + time.process_time() - began


def head_dense(subject: Subject, level: str) -> Found:
    """Ours at 2:4 with the last layer left dense, as SparseGPT and Wanda leave it."""
    began = time.process_time()
    with _pruner(subject, "moment", level, (subject.network.head,)) as pruner:
        _prune(pruner, level)
        seconds = time.process_time() - began
        yield refitted(subject, pruner, "moment+refit, head dense", seconds)


def sparsegpt_mask(subject: Subject, level: str) -> Found:
    """SparseGPT with our counts and its own update, and its mask refitted by us."""
    began = time.process_time()
    with _pruner(subject, "abs", level) as pruner:
        counts = {name: float(1 - mask.float().mean()) for name, mask in pruner.choose(_level(level))[0].items()}
    model, _ = subject.restored()
    share = (lambda name: (2, 4)) if level == TWO_FOUR else (lambda name: counts[f"{name}.weight"])
    _prune_as_published(subject, model, subject.prunable(level), share, "sparsegpt")
    seconds = time.process_time() - began
    yield "sparsegpt", model, seconds
    masks = {f"{name}.weight": layer(model, name).weight != 0 for name in subject.prunable(level)}
    with _pruner(subject, "abs", level) as pruner:
        pruner.set_masks(masks)
        yield refitted(subject, pruner, "sparsegpt+refit", seconds)


def _level(level: str) -> float | None:
    return None if level == TWO_FOUR else float(level)


def calibrated(subject: Subject, level: str, count: int) -> Found:
    """Ours refitted with another number of examples."""
    began = time.process_time()
    with _pruner(subject, "moment", level) as pruner:
        _prune(pruner, level)
        yield refitted(subject, pruner, f"moment+refit@{count}", time.process_time() - began, count)


def retrained(subject: Subject, level: str) -> Found:
    """Pruned as ours, then one epoch of training instead of refitting."""
    with _pruner(subject, "moment", level) as pruner:
        _prune(pruner, level)
        began = time.process_time()
        generator = torch.Generator().manual_seed(20_000 + subject.seed)
        optimizer = pruner.optimizers[0]
        epoch(pruner.model, optimizer, subject.task.train, subject.network.batch, generator)
        yield "moment+epoch", pruner.model.eval(), time.process_time() - began


def _alike(outputs: Any, targets: Any) -> Tensor:
    return torch.zeros(())


def sparsegpt_alone(subject: Subject, level: str) -> Iterator[tuple[str, nn.Module]]:
    """SparseGPT with every layer on dense inputs, and its mask refitted by us on dense inputs; the last layer too."""
    model, _ = subject.restored()
    names = subject.prunable(level)
    for name, gram in grams(model, names, subject.batches()).items():
        module = layer(model, name)
        with torch.no_grad():
            pruned = sparsegpt(as_matrix(module, module.weight).clone(), gram.float(), _share(level))
            module.weight.copy_(as_weight(module, pruned))
    yield "sparsegpt", model
    masks = {f"{name}.weight": layer(model, name).weight != 0 for name in names}
    with _pruner(subject, "abs", level) as pruner:
        pruner.set_masks(masks)
        # Each layer is for itself here: whether the whole is better plays no part, so all wholes are called alike.
        pw.refit(pruner, subject.batches(), dense=subject.kept["model"], inputs="dense", loss=_alike)
        yield "refit", pruner.model.eval()
