"""Wanda: a baseline that scores by the inputs of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.optim import Optimizer

from prunewald.core.base import Criterion, State, Statistic, Weights
from prunewald.core.weights import WeightStats
from prunewald.distributed import in_group, summed
from prunewald.model.inputs import LAYERS, is_read, squares_met
from prunewald.util.registry import criterion

_SET = 2  # in the place of whether a training was seen: the inputs are those of a look at data, and no more count


@dataclass(frozen=True)
class InputNorm(Statistic):
    """The norm of all inputs that each weight of a linear or convolutional layer multiplied.

    Once a pass in training mode was seen, only such count: what is merely evaluated then has no say in the pruning.
    Without training, as in a calibration after it, all passes count. After a look at data by `Pruner.observe`, only
    what it saw does, until the next pruning.

    One float32 an input feature (and a kernel position); one a weight for a grouped convolution. In a
    distributed training the inputs of all ranks count.
    """

    by_inputs: ClassVar[bool] = True

    def init(self, weights: Weights) -> State:
        """No input yet."""
        return {"trained": 0, "squares": {}}

    def update_(self, state: State, weights: Weights, optimizer: Optimizer | None) -> None:
        """Inputs come by forward passes, not by steps."""

    def watch(self, model: nn.Module, names: Sequence[str], state: Callable[[], State]) -> list[Any]:
        """Read the inputs of every module that has one of these weights; tied weights are fed by each of theirs."""
        params = dict(model.named_parameters())
        known = {id(params[name]): name for name in names}
        feeds = {module: known[at] for module in model.modules() if (at := id(_own_weight(module))) in known}
        if unfed := [name for name in names if name not in feeds.values()]:
            raise ValueError(
                f"{unfed[0]!r} is the weight of no nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d that is called, so the "
                f"inputs it multiplies cannot be read: ignore={unfed[0]!r}, or use another criterion"
            )
        reader = _uncompiled()
        return [m.register_forward_pre_hook(reader(n, state), with_kwargs=True) for m, n in feeds.items()]

    def look_(self, state: State, weights: Weights, grads: Weights, optimizer: Optimizer | None) -> bool:
        """The forward pass of the batch has told all."""
        return True

    def looked_(self, state: State) -> None:
        """What the model is used for afterwards has no say."""
        state["trained"] = _SET

    def value(self, state: State, name: str) -> Tensor | None:
        """The norm of the inputs."""
        squares: Tensor | None = state["squares"].get(name)
        if squares is None:
            return None
        return _by_row(squares, torch.sqrt)

    def resumed(self, saved: State, weights: Weights) -> State:
        """Rows that are alike are views of one again: a copy of a state has each of them."""
        return saved | {"squares": {name: _folded(squares) for name, squares in saved["squares"].items()}}

    def merged(self, value: Tensor) -> Tensor:
        """The norm of the inputs of all processes, so that each of them prunes alike."""
        return _by_row(value, lambda norm: summed(norm.square()).sqrt()) if in_group() else value


def _own_weight(module: nn.Module) -> Tensor | None:
    """The parameter that a layer multiplies its inputs by, if it is a layer whose inputs can be read."""
    # The output projection of nn.MultiheadAttention is one that is never called.
    if not isinstance(module, LAYERS) or isinstance(module, NonDynamicallyQuantizableLinear):
        return None
    return dict(module.named_parameters(recurse=False)).get("weight")


class _Reader:
    """A forward pre-hook that adds the squared inputs of one layer; blind in a copied or unpickled model."""

    def __init__(self, name: str, state: Callable[[], dict[str, Any]] | None) -> None:
        self.name, self.state = name, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _Reader, (self.name, None)

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Activation checkpointing passes the same inputs a second time, from within the backward pass.
        if self.state is None or not is_read() or torch._C._current_graph_task_id() != -1:
            return
        # What is kept must not be an inference tensor, which no later pass could add to.
        with torch.inference_mode(False), torch.no_grad():
            state = self.state()
            if state["trained"] == _SET:
                return
            if module.training and not state["trained"]:
                state |= {"trained": 1, "squares": {}}
            if module.training or not state["trained"]:
                met = squares_met(module, args, kwargs)
                _add_rows_(state["squares"], self.name, met, len(module.weight) // len(met))


@cache
def _uncompiled() -> type[_Reader]:
    """Readers that run outside compiled code; made late, since torch's compiler takes a second to import."""
    return type("_Uncompiled", (_Reader,), {"__call__": torch.compiler.disable(_Reader.__call__)})


def _add_rows_(table: dict[str, Tensor], name: str, met: Tensor, rows: int) -> None:
    """Add what one row of each group met; the entry is of the weight's shape, but a view, its rows being alike."""
    if name in table:
        met = met + table[name][::rows].to(met.device)
    table[name] = met.unsqueeze(1).expand(-1, rows, *met.shape[1:]).flatten(0, 1)


def _by_row(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor changed; where its rows are a view of one, only that is, and no memory of all weights is taken."""
    return change(tensor[:1]).expand_as(tensor) if tensor.stride(0) == 0 else change(tensor)


def _folded(squares: Tensor) -> Tensor:
    """The same, but a view of its first row where all rows are like it."""
    alike = squares[:1].expand_as(squares)
    return squares[:1].clone().expand_as(squares) if torch.equal(alike, squares) else squares


@criterion("wanda")
@dataclass(frozen=True)
class Wanda(Criterion):
    """|w|·||x||, x all inputs that a weight multiplied since attaching or the last prune().  Sun et al. (2024).

    `pruner.observe(batches)` makes the calibration pass, without gradients, and then its inputs alone count; padding
    does not, where batches have an `attention_mask`. As published, with scope="row": each output compares its own
    weights. For linear and convolutional layers. Attach the Pruner before a compiled model first runs; its graph then
    breaks at each of these layers.
    """

    @property
    def statistic(self) -> Statistic:
        """The norms of the inputs."""
        return InputNorm()

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by the size of what a weight passes on."""
        return stats.weight.abs() * stats.require_statistic()
