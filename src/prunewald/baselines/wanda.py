"""Wanda: a baseline that scores by the inputs of layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.optim import Optimizer

from prunewald.core.criteria import Statistic
from prunewald.core.weights import WeightStats
from prunewald.util.registry import criterion
from prunewald.util.tensors import accumulator

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class InputNorm:
    """The norm of all inputs that each weight of a linear or convolutional layer multiplied.

    Once a pass in training mode was seen, only such count: what is merely evaluated then has no say in the pruning.
    Without training, as in a calibration after it, all passes count.

    One float32 an input feature (and a kernel position); one a weight for a grouped convolution. Each rank of a
    distributed training sees its own inputs.
    """

    def init(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """No input yet."""
        return {"trained": 0, "squares": {}}

    def update_(self, state: dict[str, Any], weights: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
        """Inputs come by forward passes, not by steps."""

    def watch(self, model: nn.Module, names: list[str], state: Callable[[], dict[str, Any]]) -> list[Any]:
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

    def value(self, state: dict[str, Any], name: str) -> Tensor | None:
        """The norm of the inputs."""
        squares: Tensor | None = state["squares"].get(name)
        return None if squares is None else squares.sqrt()


def _own_weight(module: nn.Module) -> Tensor | None:
    """The parameter that a layer multiplies its inputs by, if it is a layer whose inputs can be read."""
    # The output projection of nn.MultiheadAttention is one that is never called.
    if not isinstance(module, _LAYERS) or isinstance(module, NonDynamicallyQuantizableLinear):
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
        if self.state is None or torch._C._current_graph_task_id() != -1:
            return
        # What is kept must not be an inference tensor, which no later pass could add to.
        with torch.inference_mode(False), torch.no_grad():
            state = self.state()
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


def squares_met(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Σ x² of what each place of a row of the weight multiplies in one call; a row for each group."""
    x = args[0] if args else kwargs["input"]
    return _linear_squares(x) if isinstance(module, nn.Linear) else _convolution_squares(module, x)


def _squares(x: Tensor, dims: int) -> Tensor:
    """x² summed over all but the last dimensions."""
    x = x.unsqueeze(0)  # so that there is one to sum over
    return x.to(accumulator(x)).square().sum(tuple(range(x.dim() - dims)))


def _linear_squares(x: Tensor) -> Tensor:
    """Σ x² of each feature, as one row."""
    return _squares(x, 1).unsqueeze(0)


def _convolution_squares(module: Any, x: Tensor) -> Tensor:
    """Σ x² over the positions that each place of the kernel meets, as one row a group."""
    sums = _squares(x, 1 + len(module.kernel_size))
    sums = F.pad(sums, _padding(module), mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    for size, stride, dilation in zip(module.kernel_size, module.stride, module.dilation, strict=True):
        # The first dimension of space is replaced by one of the kernel, at the end.
        sums = sums.unfold(1, dilation * (size - 1) + 1, stride)[..., ::dilation].sum(1)
    by_group: Tensor = sums.unflatten(0, (module.groups, -1))
    return by_group


def _padding(module: Any) -> Sequence[int]:
    """As F.pad wants it: the last dimension first."""
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        padding: list[int] = module._reversed_padding_repeated_twice
        return padding
    return [side for size in reversed(module.padding) for side in (size, size)]


@criterion("wanda")
@dataclass(frozen=True)
class Wanda:
    """|w|·||x||, x all inputs that a weight multiplied since attaching or the last prune().  Sun et al. (2024).

    As published, with scope="row": each output compares its own weights. For linear and convolutional layers. Attach
    the Pruner before a compiled model first runs; its graph then breaks at each of these layers.
    """

    uses_sigma: ClassVar[bool] = False
    statistic: ClassVar[Statistic] = InputNorm()

    def __call__(self, stats: WeightStats) -> Tensor:
        """Score by the size of what a weight passes on."""
        return stats.weight.abs() * stats.require_statistic()
