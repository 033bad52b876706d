"""Training step by step: what one replica in a plain loop and many together have in common, and the plain loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from prunewald.ensemble import draws
from prunewald.ensemble.estimates import Replica, estimates
from prunewald.ensemble.job import Job, Table, build, initial, seeded
from prunewald.ensemble.result import Result
from prunewald.ensemble.swap import Swap
from prunewald.optimizers import mean_square_gradient
from prunewald.weights import zero_


class Trainer(ABC):
    """Holds the parameters, the optimizer and what is collected."""

    how = "loop"

    def __init__(self, job: Job, model: nn.Module, params: Table, fixed: Table, alive: Table, fast: bool) -> None:
        self.job, self.model, self.params, self.fixed, self.alive = job, model, params, fixed, alive
        self.x, self.y = job.x.to(job.device), job.y.to(job.device)
        for name, mask in alive.items():
            zero_(params[name], mask)
        self.optimizer = job.optimizer.build(params.values(), fast=fast)
        self.key = draws.seed_key(job.seeds, draws.NOISE, job.device)
        self.count = torch.zeros((), dtype=torch.int32, device=job.device)
        self.states = [recipe.init() for recipe in job.collect]
        self.total = torch.zeros(len(job.seeds), dtype=torch.float64, device=job.device)
        self.losses: list[Tensor] = []

    @abstractmethod
    def forward(self, rows: Tensor) -> Tensor:
        """The loss of each replica, (R,), on its rows of the data, (R, batch)."""

    @abstractmethod
    def replicas(self) -> Iterable[Replica]:
        """Each replica as an estimator sees it."""

    @abstractmethod
    def stacked(self, table: Table) -> Table:
        """Tensors with one row a replica."""

    @abstractmethod
    def context(self) -> AbstractContextManager[Any]:
        """What surrounds the whole training."""

    def untrained(self) -> Table:
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
        self.total += losses * rows.shape[1]

    def fit(self, tick: Callable[[int], object]) -> Result:
        """Train to the end; `tick` is told how many replicas finished an epoch."""
        with self.context():
            sample = self.job.sample()
            for epoch in range(self.job.epochs):
                for rows in self.job.epoch(epoch, sample):
                    self.step(rows)
                    for recipe, state in zip(self.job.collect, self.states, strict=True):
                        recipe.update_(state, self.params, self.optimizer)
                self.losses.append(self.total / self.job.size)
                self.total.zero_()
                tick(len(self.job.seeds))
            return self.result()

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
            estimates=estimates(self.job.collect, self.replicas()),
            how=self.how,
        )

    def _cpu(self, table: Table) -> Table:
        return {name: tensor.detach().cpu() for name, tensor in self.stacked(table).items()}


class Alone(Trainer):
    """One replica in a plain loop."""

    def __init__(self, job: Job) -> None:
        assert len(job.seeds) == 1
        model = build(job.make, job.seeds[0]).to(job.device).train()
        own = dict((*model.named_parameters(), *model.named_buffers()))
        with torch.no_grad():
            for name, tensor in initial(job).items():
                own[name].copy_(tensor[0])
        params: Table = {name: param for name, param in model.named_parameters() if param.requires_grad}
        alive = {name: mask[0].to(job.device) for name, mask in job.masks.items() if name in params}
        super().__init__(job, model, params, {}, alive, fast=False)

    def untrained(self) -> Table:
        """Read anew, since a model may put another tensor in a buffer's place."""
        own = (*self.model.named_parameters(), *self.model.named_buffers())
        return {name: tensor for name, tensor in own if name not in self.params}

    def forward(self, rows: Tensor) -> Tensor:
        """The loss, (1,)."""
        with Swap(self.key[0], self.count, fast=False):
            return self.job.loss(self.model(self.x[rows[0]]), self.y[rows[0]]).reshape(1)

    def replicas(self) -> Iterable[Replica]:
        """The one."""
        return [Replica(self.params, self.alive, self.states, self.optimizer)]

    def stacked(self, table: Table) -> Table:
        """Tensors with one row."""
        return {name: tensor[None] for name, tensor in table.items()}

    def context(self) -> AbstractContextManager[Any]:
        """Any other randomness of the model starts from the replica's seed too."""
        return seeded(self.job.seeds[0])
