"""Examples of a task in batches as its network takes them, and how well a network does on them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.refitting.corpus import sequences
from benchmarks.refitting.networks import Network
from prunewald.lab.data import Rule, load, split

_TEST_SEQUENCES = 1024


@dataclass(frozen=True)
class Examples:
    """Images with labels, or sequences, each byte of which is to be told from those before it."""

    x: Tensor
    y: Tensor | None

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, rows: Tensor) -> "Examples":
        """Some of them."""
        return Examples(self.x[rows], None if self.y is None else self.y[rows])

    def batches(self, size: int) -> list[Any]:
        """As the network takes them: pairs, or dicts as Hugging Face's models want."""
        if self.y is None:
            return [{"input_ids": x, "labels": x} for x in self.x.split(size)]
        return list(zip(self.x.split(size), self.y.split(size), strict=True))


@dataclass(frozen=True)
class Task:
    """Examples to train on, all others being unseen, and those to test on."""

    train: Examples
    test: Examples
    source: str

    def calibration(self, count: int, seed: int) -> list[Any]:
        """So many of the training examples, drawn by the seed of the network; larger sets have the smaller in them."""
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(10_000 + seed))
        return self.train.rows(order[:count]).batches(256 if self.train.y is not None else 64)


def task(network: Network, seed: int, data: Path | None, text: Path) -> Task | None:
    """The examples of one network; None where there is no corpus."""
    if network.text:
        found = sequences(text)
        if found is None:
            return None
        train, test, source = found
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        some = torch.arange(_TEST_SEQUENCES) * len(test) // _TEST_SEQUENCES
        return Task(Examples(train[order[: network.train]], None), Examples(test[some], None), source)
    raw = load(network.data, data)
    rule = None if network.train == 5_400 else Rule(val=5000)  # the paper's split, or as many as are wanted
    rows = split(raw, seed, rule).train[: network.train]
    train_x, test_x = (part.x.float().div_(255) for part in (raw.train, raw.test))
    return Task(Examples(train_x, raw.train.y).rows(rows), Examples(test_x, raw.test.y), raw.source)


def forward(model: nn.Module, batch: Any) -> Tensor:
    """The logits of a batch."""
    found: Tensor = model(**batch).logits if isinstance(batch, dict) else model(batch[0])
    return found


def errors(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Cross entropies of all that a batch has to be told, and whether each was told right."""
    logits = forward(model, batch)
    wanted = batch["input_ids"][:, 1:] if isinstance(batch, dict) else batch[1]
    logits = logits[:, :-1].flatten(0, 1) if isinstance(batch, dict) else logits
    return F.cross_entropy(logits, wanted.flatten(), reduction="none"), logits.argmax(1) == wanted.flatten()


@torch.no_grad()
def score(model: nn.Module, examples: Examples) -> dict[str, float]:
    """Accuracy in percent and cross entropy in bits: of images, or of the next byte."""
    model.eval()
    found = [errors(model, batch) for batch in examples.batches(500 if examples.y is not None else 64)]
    lost, right = (torch.cat(part) for part in zip(*found, strict=True))
    bits = float(lost.double().mean()) / math.log(2)
    return {"accuracy": 100 * float(right.double().mean()), "bits": bits if math.isfinite(bits) else 1e9}


def epoch(model: nn.Module, optimizer: Any, examples: Examples, size: int, generator: torch.Generator) -> None:
    """Train once on all examples, in batches as equal as can be."""
    model.train()
    for batch in _shuffled(examples, size, generator):
        optimizer.zero_grad()
        errors(model, batch)[0].mean().backward()
        optimizer.step()


def _shuffled(examples: Examples, size: int, generator: torch.Generator) -> Iterator[Any]:
    order = torch.randperm(len(examples), generator=generator)
    for rows in order.tensor_split(-(-len(order) // size)):
        yield from examples.rows(rows).batches(size)
