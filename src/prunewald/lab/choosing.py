"""Which weights of a network are kept: one task a network, method and level, many of them over processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunewald.ensemble.replicas import build, tensors
from prunewald.lab.methods import CONTROL, Method, choose
from prunewald.lab.pool import Tick, cpus, each
from prunewald.util.progress import progress_bar

Table = dict[str, Tensor]
_MANY = 200  # tasks that are worth starting processes for
_EACH = 16  # tasks that go to a process together


class Chosen(NamedTuple):
    """The masks of one network, and the share of the kept weights that magnitude would keep too."""

    masks: Table
    overlap: float


@dataclass(frozen=True)
class Task:
    """One network to be pruned by a method to a level; `table` are its sigmas or scores, `alive` its masks before."""

    make: Callable[[], nn.Module]
    state: Table
    weights: Sequence[str]  # what is pruned
    method: Method
    level: float
    seed: int
    table: Table
    alive: Table | None
    prune: str

    def chosen(self, where: torch.device) -> Chosen:
        """What is kept, found on a device."""
        model = self._model().to(where)
        if self.method.sigma == CONTROL:
            shapes = {name: model.get_parameter(name) for name in self.weights}
            return Chosen({name: torch.ones(w.shape, dtype=torch.bool) for name, w in shapes.items()}, 1.0)
        table = {name: tensor.to(where) for name, tensor in self.table.items()}
        masks, report = choose(self.method, model, self.level, self.seed, table, self.alive, self.prune)
        overlap = sum(one.overlap * one.kept for one in report.rows) / report.kept
        return Chosen({name: mask.cpu() for name, mask in masks.items()}, overlap)

    def _model(self) -> nn.Module:
        model = build(self.make, 0)
        own = tensors(model)
        with torch.no_grad():
            for name, tensor in self.state.items():
                own[name].copy_(tensor)
        return model

    def __getstate__(self) -> dict[str, Any]:
        """For another process: arrays, since each tensor would be shared through a file that stays open."""
        return vars(self) | {name: _arrays(vars(self)[name]) for name in ("state", "table", "alive")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {name: _tensors(state[name]) for name in ("state", "table", "alive")})


def choose_all(tasks: Sequence[Task], where: torch.device, spread: bool) -> list[Chosen]:
    """What is kept of each; with `spread`, of many small networks, over all processors."""
    if not spread or len(tasks) < _MANY or cpus() == 1:
        return [task.chosen(where) for task in tasks]
    parts = [tasks[first : first + _EACH] for first in range(0, len(tasks), _EACH)]
    with progress_bar(total=0, show=False) as bar:
        found = each(_part, parts, min(cpus(), len(parts)), bar)
    return [Chosen(_tensors(masks) or {}, overlap) for part in found for masks, overlap in part]


def _part(tasks: Sequence[Task], tick: Tick) -> list[tuple[dict[str, NDArray[Any]] | None, float]]:
    """What one process does."""
    found = map(partial(Task.chosen, where=torch.device("cpu")), tasks)
    return [(_arrays(one.masks), one.overlap) for one in found]


def _arrays(table: Table | None) -> dict[str, NDArray[Any]] | None:
    return None if table is None else {name: tensor.numpy() for name, tensor in table.items()}


def _tensors(table: dict[str, NDArray[Any]] | None) -> Table | None:
    return None if table is None else {name: torch.from_numpy(array) for name, array in table.items()}
