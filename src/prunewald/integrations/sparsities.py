"""What the callbacks log: how much is pruned and zero at this moment."""

from collections import Counter

import torch

from prunewald.pruner import Pruner


def sparsities(pruner: Pruner) -> tuple[float, dict[str, float]]:
    """The share that is pruned and zero: of all targets, and by parameter, experts that are stacked in one together."""
    kept, size = Counter[str](), Counter[str]()
    for part in pruner.slices:
        name = part.param
        here = part.take((pruner.zeros.params[name].detach() != 0) | pruner.zeros.mask(name))
        kept[name] += int(torch.count_nonzero(here))
        size[name] += here.numel()
    return 1 - kept.total() / size.total(), {name: 1 - kept[name] / size[name] for name in size}
