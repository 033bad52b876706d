"""What a callback asks of Lightning's Trainer: its optimizers, how long it trains, whether it can be pruned in."""

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer

_SHARDED = {"FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAFSDPStrategy"}


def optimizers(trainer: Any, inside: nn.Module) -> list[Optimizer]:
    """Those that step something of what is pruned: the steps of the last are counted."""
    own = set(map(id, inside.parameters()))
    every: list[Optimizer] = trainer.optimizers
    found = [one for one in every if any(id(p) in own for group in one.param_groups for p in group["params"])]
    return found or every


def steps_to_come(trainer: Any, pl_module: Any) -> int:
    """How many steps the training has yet; 0 or less where that is not known. By hand, each batch is one."""
    total = trainer.estimated_stepping_batches
    taken = trainer.global_step if pl_module.automatic_optimization else trainer.fit_loop.total_batch_idx + 1
    return int(total) - taken if math.isfinite(total) else 0


def check_strategy(trainer: Any) -> None:
    """Refuse weights that are sharded over processes."""
    kinds = [kind.__name__ for kind in type(trainer.strategy).__mro__]
    if not _SHARDED.isdisjoint(kinds):
        raise ValueError(
            f"{kinds[0]} shards weights over processes, and PrunerCallback prunes whole ones: Trainer(strategy='ddp')"
        )


def check_epoch(trainer: Any, at_epoch: int) -> None:
    """Refuse an epoch that never comes, but for a dry run, which is of one batch."""
    last = None if trainer.fast_dev_run else trainer.max_epochs
    if last not in (None, -1) and at_epoch >= last:
        raise ValueError(
            f"at_epoch={at_epoch} never comes: epochs count from 0, and Trainer(max_epochs={last}) has none of that "
            "number; prune earlier, or after the fit: callback.pruner.prune(...)"
        )
