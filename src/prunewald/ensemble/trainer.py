"""Training step by step: what a plain loop over one replica and a step of many together have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from prunewald.core.base import Estimate, Online, State
from prunewald.ensemble import carry, draws
from prunewald.ensemble.estimates import Estimates
from prunewald.ensemble.job import Job, TensorDict
from prunewald.ensemble.result import Result
from prunewald.ensemble.saving import SavedFile
from prunewald.model.optimizers import forget_, mean_square_gradient
from prunewald.util.tensors import zero_
from prunewald.util.trees import mapped


class Trainer(ABC):
    """Trains the replicas of a job: it has their parameters, their optimizer and the states of what is collected.

    `params` are what the optimizer steps, `alive` the masks of some of them, and `carried` the state that the optimizer
    goes on from. With `fast` the optimizer is one that runs well inside a CUDA graph.
    """

    way: ClassVar[str]  # which `how` this is

    def __init__(
        self, job: Job, model: nn.Module, params: TensorDict, alive: TensorDict, carried: carry.Carried, fast: bool
    ) -> None:
        self.job, self.model, self.params, self.alive = job, model, params, alive
        self.how: str = self.way  # what the result says of it
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
        self.states = [estimator.init_marked(params) for estimator in job.collect]
        self.total = torch.zeros(len(job.seeds), dtype=torch.float64, device=job.device)
        self.losses: list[Tensor] = []

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """The loss of each replica, (R,), on its rows of the data, (R, batch)."""

    @abstractmethod
    def estimate(self, estimator: Online, state: State) -> Estimates:
        """What an estimator has found out, by parameter name, with one row for each replica."""

    @abstractmethod
    def stacked(self, tensors: TensorDict) -> TensorDict:
        """The tensors of the model or the optimizer with one row for each replica."""

    @abstractmethod
    def untrained(self) -> TensorDict:
        """Buffers, and parameters with requires_grad=False, as they are now."""

    @abstractmethod
    def context(self) -> AbstractContextManager[Any]:
        """A context that the whole training has to run in."""

    def begin(self, epoch: int) -> None:
        """Prepare an epoch; there may be nothing to do."""

    def backward(self, rows: Tensor) -> Tensor:
        """Leave the gradients at the parameters, and return the losses."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.forward(rows)
        # The gradient of the sum by a replica's weights is that of its own loss.
        losses.sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
        for name, alive in self.alive.items():
            if (grad := self.params[name].grad) is not None:
                zero_(grad, alive)
        return losses.detach()

    def step(self, rows: Tensor) -> None:
        """Take one optimizer step."""
        losses = self.backward(rows)
        self.optimizer.step()
        self.count += 1
        self.total += losses if self.job.summed else losses * rows.shape[1]

    def fit(self, tick: Callable[[int], object], file: SavedFile | None = None, *, more: bool = False) -> Result:
        """Train to the end; `tick` is told how many replicas have finished an epoch.

        With a `file` the training goes on from what was saved there, and is saved there on its way; also at its end,
        where there are `more` replicas to train after these.
        """
        first, last = self.job.first_epoch, self.job.first_epoch + self.job.epochs
        if file:
            first += self._restore_(file.load())
            tick((first - self.job.first_epoch) * len(self.job.seeds))
        with self.context():
            sample = self.job.sample()
            for epoch in range(first, last):
                self._epoch(epoch, sample)
                tick(len(self.job.seeds))
                if file and (file.due if epoch < last - 1 else more):
                    file.save(self._snapshot())
            return self.result()

    def _epoch(self, epoch: int, sample: Tensor | None) -> None:
        self.begin(epoch)
        for rows in self.job.epoch(epoch, sample):
            self.step(rows)
            for estimator, state in zip(self.job.collect, self.states, strict=True):
                estimator.update_(state, self.params, self.optimizer)
        self.losses.append(self.total / self.job.size)
        self.total.zero_()

    def _snapshot(self) -> dict[str, Any]:
        """All that the rest of the training depends on, after an epoch."""
        tensors = {name: tensor.detach() for name, tensor in {**self.params, **self.untrained()}.items()}
        held = self.optimizer.state_dict()
        return {"tensors": tensors, "optimizer": held, "states": self.states, "losses": self.losses}

    def _restore_(self, saved: dict[str, Any]) -> int:
        """Go on from a snapshot, if there is one; returns how many epochs are done."""
        if not saved:
            return 0
        own = {**self.params, **self.untrained()}
        with torch.no_grad():
            for name, tensor in saved["tensors"].items():
                own[name].copy_(tensor)
        self.optimizer.load_state_dict(saved["optimizer"])
        here = mapped([saved["states"], saved["losses"]], lambda tensor: tensor.to(self.job.device))
        self.states, self.losses = here
        self.count += len(self.losses) * self.job.batches
        return len(self.losses)

    def result(self) -> Result:
        """What was trained, on the CPU."""
        state = {**self.params, **self.untrained()}
        moments = {name: mean_square_gradient(self.optimizer, param) for name, param in self.params.items()}
        for estimator, collected in zip(self.job.collect, self.states, strict=True):
            estimator.check(collected, self.params)
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

    def _collected(self, estimator: Online, state: State) -> Estimates:
        found = self.estimate(estimator, state)
        return {n: Estimate(sigma.cpu(), None if dead is None else dead.cpu()) for n, (sigma, dead) in found.items()}

    def _kept(self) -> dict[str, TensorDict]:
        return {name: self._cpu(table) for name, table in carry.kept(self.optimizer, self.params).items()}

    def _cpu(self, tensors: TensorDict) -> TensorDict:
        return {name: tensor.detach().cpu() for name, tensor in self.stacked(tensors).items()}
