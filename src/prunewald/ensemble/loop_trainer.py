"""how="loop": one replica in a plain loop, as anyone would write it."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from prunewald.core.base import Online, State
from prunewald.ensemble import carry, draws, estimates
from prunewald.ensemble.estimates import Estimates
from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.replicas import seeded, tensors
from prunewald.ensemble.start import initial, ready_model
from prunewald.ensemble.swap import Swap
from prunewald.ensemble.trainer import Trainer


class LoopTrainer(Trainer):
    """Trains the only replica of a job; with `noise=False` without dropout."""

    way = "loop"

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
        super().__init__(job, model, params, alive, carry.unstacked(job.optimizer_state), fast=False)
        words = self.key[0], self.count  # the arrays share the memory of the tensors, so that they count along
        self.words = tuple(word.numpy() for word in words) if job.device.type == "cpu" else words

    def untrained(self) -> TensorDict:
        """Buffers and fixed parameters, asked for anew: a model may put another tensor in the place of a buffer."""
        return {name: tensor for name, tensor in tensors(self.model).items() if name not in self.params}

    def forward(self, rows: Tensor) -> Tensor:
        """The loss of the replica on its rows of the data, (1,)."""
        with Swap(self.words[0], self.words[1], fast=False, noise=self.noise):
            loss = self.job.loss(self.model(self.x[rows[0]]), self.y[rows[0]])
        if loss.numel() != 1:
            raise ValueError(f"loss gives {tuple(loss.shape)}: must be one number for a batch, its mean or its sum")
        return loss.reshape(1)

    def estimate(self, estimator: Online, state: State) -> Estimates:
        """What the estimator says of the replica, as the only row."""
        found = estimates.of_model(estimator, state, self.params, self.alive, self.optimizer)
        return {name: estimates.merged([each], torch.stack) for name, each in found.items()}

    def stacked(self, tensors: TensorDict) -> TensorDict:
        """Each tensor as the only row of a new one."""
        return {name: tensor[None] for name, tensor in tensors.items()}

    def context(self) -> AbstractContextManager[Any]:
        """Torch's own generators, which a model may draw from, follow the replica's seed in here."""
        return seeded(self.job.seeds[0])

    def begin(self, epoch: int) -> None:
        """Seed torch's generators by the epoch too, so that training may stop between two and go on."""
        torch.manual_seed(draws.other(self.job.seeds[0], epoch))
