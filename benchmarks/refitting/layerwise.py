"""SparseGPT and Wanda on a whole network as they were published: layer by layer, each on what those before leave.

Convolutions are pruned on their unfolded inputs, the matrix over positions, with the channels of a position side by
side, so that 2:4 is over channels. The layers of a transformer's block are pruned together, from one pass.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.refitting.examples import forward

Prune = Callable[[str, Tensor, Tensor], Tensor]  # name, weight as a matrix, Gram matrix of the inputs -> weight


def layers(model: nn.Module, batch: Any) -> list[str]:
    """Linear and convolutional layers in the order in which they are called."""
    found: list[str] = []
    named = {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    handles = [m.register_forward_pre_hook(lambda module, _: found.append(named[module])) for m in named]
    with torch.no_grad():
        forward(model.eval(), batch)
    for handle in handles:
        handle.remove()
    return found


def layer(model: nn.Module, name: str) -> Any:
    """A layer by its name."""
    return model.get_submodule(name)


def as_matrix(module: nn.Module, weight: Tensor) -> Tensor:
    """A weight as (outputs, inputs), the channels of a kernel's position side by side."""
    return weight if isinstance(module, nn.Linear) else weight.movedim(1, -1).flatten(1)


def as_weight(module: Any, matrix: Tensor) -> Tensor:
    """What `as_matrix` was given."""
    if isinstance(module, nn.Linear):
        return matrix
    out, channels, *kernel = module.weight.shape
    return matrix.view(out, *kernel, channels).movedim(-1, 1)


def inputs(module: Any, x: Tensor) -> Tensor:
    """What the matrix of a layer multiplies, one a row."""
    if isinstance(module, nn.Linear):
        return x.flatten(0, -2)
    columns = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
    by_place: Tensor = columns.unflatten(1, (x.shape[1], -1)).transpose(1, 2).flatten(1, 2)
    return by_place.transpose(1, 2).flatten(0, 1)


class _Enough(Exception):
    """All layers that are asked for have been read."""


@torch.no_grad()
def grams(model: nn.Module, names: Sequence[str], batches: Sequence[Any], bias: bool = False) -> dict[str, Tensor]:
    """Sums of products of the inputs of layers, in the order of their calls; with `bias` a constant input is last."""
    found: dict[str, Tensor] = {}

    def reader(name: str) -> Callable[[Any, Any], None]:
        def read(module: Any, args: Any) -> None:
            rows = inputs(module, args[0])
            rows = F.pad(rows, (0, 1), value=1.0) if bias else rows
            found[name] = found.get(name, torch.zeros(())) + (rows.T @ rows).double()
            if name == names[-1]:
                raise _Enough

        return read

    handles = [layer(model, name).register_forward_pre_hook(reader(name)) for name in names]
    model.eval()
    for batch in batches:
        with suppress(_Enough):  # what comes after the last of them is not needed
            forward(model, batch)
    for handle in handles:
        handle.remove()
    return found


def together(names: Sequence[str], blocks: Sequence[str]) -> list[list[str]]:
    """Layers in order; those of one block of a transformer are a group, any other is alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        own = next((block for block in blocks if name.startswith(block + ".")), name)
        groups.setdefault(own, []).append(name)
    return list(groups.values())


@torch.no_grad()
def prune_in_order(
    model: nn.Module,
    names: Sequence[str],
    blocks: Sequence[str],
    batches: Sequence[Any],
    prune: Prune,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Prune layers in place, each group on the inputs that come through those before it; `settle` after each group."""
    for group in together(names, blocks):
        for name, gram in grams(model, group, batches).items():
            module = layer(model, name)
            pruned = prune(name, as_matrix(module, module.weight).clone(), gram.float())
            module.weight.copy_(as_weight(module, pruned))
        settle()


@torch.no_grad()
def reconstruction(
    dense: nn.Module, pruned: nn.Module, names: Sequence[str], batches: Sequence[Any]
) -> dict[str, float]:
    """How far each layer's outputs are from the dense ones, for inputs of the dense network: a share of their size."""
    found = {}
    for name, gram in grams(dense, names, batches, bias=True).items():
        own, other = (_with_bias(layer(model, name)) for model in (dense, pruned))
        found[name] = _energy(own - other, gram) / _energy(own, gram)
    return found


def _with_bias(module: Any) -> Tensor:
    matrix = as_matrix(module, module.weight)
    bias = matrix.new_zeros(len(matrix)) if module.bias is None else module.bias
    return torch.cat([matrix, bias[:, None]], 1).double()


def _energy(matrix: Tensor, gram: Tensor) -> float:
    return float((matrix @ gram).mul(matrix).sum())
