"""Training step by step: what one replica in a plain loop and many together have in common, and the plain loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.ensemble import carry, draws, estimates
from prunewald.ensemble.estimates import Estimates
from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.result import Result
from prunewald.ensemble.saving import SavedFile
from prunewald.model.optimizers import forget_, mean_square_gradient
from prunewald.uncertainty import Estimate, Online
from prunewald.uncertainty.base import State
from prunewald.util.tensors import zero_


class Trainer(ABC):
    """Holds the parameters, the optimizer and what is collected."""

    how: str

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        params: TensorDict,
        fixed: TensorDict,
        alive: TensorDict,
        carried: carry.Carried,
        fast: bool,
    ) -> None:
        self.job, self.model, self.params, self.fixed, self.alive = job, model, params, fixed, alive
        self.x, self.y = job.x.to(job.device), job.y.to(job.device)
        if not params:
            raise ValueError("no parameter of the model has requires_grad=True: there is nothing to train")
        self.optimizer = job.optimizer.build(params.values(), fast=fast)
        if carried:
            carry.restore_(self.optimizer, params, carried)
            for name, mask in alive.items():
                forget_(self.optimizer, params[name], mask)
        self.key = draws.seed_key(job.seeds, draws.NOISE, job.device)
        self.count = torch.full((), job.first_epoch * job.batches, dtype=torch.int32, device=job.device)
        self.states = [recipe.init() for recipe in job.collect]
        self.total = torch.zeros(len(job.seeds), dtype=torch.float64, device=job.device)
        self.losses: list[Tensor] = []

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """The loss of each replica, (R,), on its rows of the data, (R, batch)."""

    @abstractmethod
    def estimate(self, recipe: Online, state: State) -> Estimates:
        """What an estimator says of each replica, by parameter name."""

    @abstractmethod
    def stacked(self, table: TensorDict) -> TensorDict:
        """TensorDict with one row a replica."""

    @abstractmethod
    def context(self) -> AbstractContextManager[Any]:
        """What surrounds the whole training."""

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """What comes before each epoch."""

    def untrained(self) -> TensorDict:
        """Buffers, and parameters without a gradient."""
        return self.fixed

    def backward(self, rows: Tensor) -> Tensor:
        """Leave the gradients at the parameters; return the losses."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.forward(rows)
        # The gradient of the sum by a replica's weights is that of its own loss.
        losses.sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
        for name, alive in self.alive.items():
            if (grad := self.params[name].grad) is not None:
                zero_(grad, alive)
        return losses.detach()

    def step(self, rows: Tensor) -> None:
        """One optimizer step."""
        losses = self.backward(rows)
        self.optimizer.step()
        self.count += 1
        self.total += losses if self.job.summed else losses * rows.shape[1]

    def fit(self, tick: Callable[[int], object], saves: SavedFile | None = None, *, more: bool = False) -> Result:
        """Train to the end; `tick` is told how many replicas finished an epoch.

        It goes on from what was saved, and is saved on its way; at its end too if there is `more` to train.
        """
        first, last = self.job.first_epoch, self.job.first_epoch + self.job.epochs
        if saves:
            first += self._restore_(saves.load())
            tick((first - self.job.first_epoch) * len(self.job.seeds))
        with self.context():
            sample = self.job.sample()
            for epoch in range(first, last):
                self.begin(epoch)
                for rows in self.job.epoch(epoch, sample):
                    self.step(rows)
                    for recipe, state in zip(self.job.collect, self.states, strict=True):
                        recipe.update_(state, self.params, self.optimizer)
                self.losses.append(self.total / self.job.size)
                self.total.zero_()
                tick(len(self.job.seeds))
                if saves and (saves.due if epoch < last - 1 else more):
                    saves.save(self._snapshot())
            return self.result()

    def _snapshot(self) -> dict[str, Any]:
        """All that the rest of the training depends on, after an epoch."""
        tensors = {name: tensor.detach() for name, tensor in {**self.params, **self.untrained()}.items()}
        held = self.optimizer.state_dict()
        return {"tensors": tensors, "optimizer": held, "states": self.states, "losses": self.losses}

    def _restore_(self, saved: dict[str, Any]) -> int:
        """Go on from a snapshot, if there is one; returns the epochs that are done."""
        if not saved:
            return 0
        own = {**self.params, **self.untrained()}
        with torch.no_grad():
            for name, tensor in saved["tensors"].items():
                own[name].copy_(tensor)
        self.optimizer.load_state_dict(saved["optimizer"])
        here = estimates.mapped([saved["states"], saved["losses"]], lambda tensor: tensor.to(self.job.device))
        self.states, self.losses = here
        self.count += len(self.losses) * self.job.batches
        return len(self.losses)

    def result(self) -> Result:
        """What was trained, on the CPU."""
        state = {**self.params, **self.untrained()}
        moments = {name: mean_square_gradient(self.optimizer, param) for name, param in self.params.items()}
        for recipe, collected in zip(self.job.collect, self.states, strict=True):
            recipe.check(collected)
        return Result(
            make=self.job.make,
            seeds=self.job.seeds,
            params=self._cpu({name: state[name] for name, _ in self.model.named_parameters()}),
            buffers=self._cpu({name: state[name] for name, _ in self.model.named_buffers()}),
            losses=torch.stack(self.losses, 1).cpu(),
            second_moment=self._cpu({name: v for name, v in moments.items() if v is not None}),
            estimates=tuple(map(self._collected, self.job.collect, self.states)),
            how=self.how,
            optimizer_state=self._kept() if self.job.keep_optimizer else {},
        )

    def _collected(self, recipe: Online, state: State) -> Estimates:
        found = self.estimate(recipe, state)
        return {n: Estimate(sigma.cpu(), None if dead is None else dead.cpu()) for n, (sigma, dead) in found.items()}

    def _kept(self) -> dict[str, TensorDict]:
        return {name: self._cpu(table) for name, table in carry.kept(self.optimizer, self.params).items()}

    def _cpu(self, table: TensorDict) -> TensorDict:
        return {name: tensor.detach().cpu() for name, tensor in self.stacked(table).items()}
