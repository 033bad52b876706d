"""BatchNorm after pruning: its running means and variances are those of the dense network, so measure them again."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunewald.model.calibration import Calibration


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any], *, limit: int | None = None, progress: bool = False) -> None:
    """Measure the running statistics of every BatchNorm anew, as means over the batches; nothing else changes.

    To be called after a pruning, with a few batches of training inputs, at most `limit` of them, in the form that a
    training loop has them: no gradients, no retraining, and labels play no part. All other modules are in eval mode
    meanwhile, so that dropout is off, and afterwards every module is in the mode it was in.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        raise ValueError("the model has no BatchNorm with running statistics: there is nothing to recalibrate")
    data = Calibration(batches, model, passes=1, limit=limit, progress=progress)
    modes = {module: module.training for module in model.modules()}
    kept = [(norm.momentum, {name: buffer.clone() for name, buffer in norm.named_buffers()}) for norm in norms]
    done = False
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum, norm.training = None, True  # None: the mean over all batches
        for batch in data:
            batch.call(model)
        done = True
    finally:
        for module, mode in modes.items():
            module.training = mode
        for norm, (momentum, buffers) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            for name, buffer in norm.named_buffers() if not done else ():
                buffer.copy_(buffers[name])
