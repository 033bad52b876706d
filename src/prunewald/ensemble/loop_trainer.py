"""One replica in a plain loop."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from prunewald.ensemble import carry, draws, estimates
from prunewald.ensemble.estimates import Estimates
from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.replicas import seeded, tensors
from prunewald.ensemble.start import initial, ready_model
from prunewald.ensemble.swap import Swap
from prunewald.ensemble.trainer import Trainer
from prunewald.uncertainty import Online
from prunewald.uncertainty.base import State


class LoopTrainer(Trainer):
    """One replica in a plain loop; `noise=False`: without dropout."""

    how = "loop"

    def __init__(self, job: Job, noise: bool = True) -> None:
        assert len(job.seeds) == 1
        self.noise = noise
        model = ready_model(job)
        own = tensors(model)
        with torch.no_grad():
            for name, tensor in initial(job).items():
                own[name].copy_(tensor[0])
        params: TensorDict = {name: param for name, param in model.named_parameters() if param.requires_grad}
        alive = {name: mask[0].to(job.device) for name, mask in job.masks.items() if name in params}
        super().__init__(job, model, params, {}, alive, carry.unstacked(job.optimizer_state), fast=False)

    def untrained(self) -> TensorDict:
        """Read anew, since a model may put another tensor in a buffer's place."""
        return {name: tensor for name, tensor in tensors(self.model).items() if name not in self.params}

    def forward(self, rows: Tensor) -> Tensor:
        """The loss, (1,)."""
        with Swap(self.key[0], self.count, fast=False, noise=self.noise):
            loss = self.job.loss(self.model(self.x[rows[0]]), self.y[rows[0]])
        if loss.numel() != 1:
            raise ValueError(f"loss gives {tuple(loss.shape)}: must be one number a batch, its mean or its sum")
        return loss.reshape(1)

    def estimate(self, recipe: Online, state: State) -> Estimates:
        """Of the one."""
        found = estimates.of_model(recipe, state, self.params, self.alive, self.optimizer)
        return {name: estimates.stacked([each]) for name, each in found.items()}

    def stacked(self, table: TensorDict) -> TensorDict:
        """TensorDict with one row."""
        return {name: tensor[None] for name, tensor in table.items()}

    def context(self) -> AbstractContextManager[Any]:
        """Any other randomness of the model is from the replica's seed too."""
        return seeded(self.job.seeds[0])

    def begin(self, epoch: int) -> None:
        """It starts anew in each epoch, so that training may stop between two and go on."""
        torch.manual_seed(draws.other(self.job.seeds[0], epoch))
