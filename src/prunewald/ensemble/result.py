"""What was trained."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor, nn

from prunewald.ensemble import carry, evaluation
from prunewald.ensemble.evaluation import EvaluationOptions, Metric, correct
from prunewald.ensemble.job import TensorDict
from prunewald.ensemble.replicas import Make, build, tensors
from prunewald.uncertainty import Estimate


@dataclass(frozen=True)
class Result:
    """Trained replicas, on the CPU; row r of every tensor belongs to seeds[r]."""

    make: Make = field(repr=False)
    seeds: tuple[int, ...]
    params: TensorDict = field(repr=False)
    buffers: TensorDict = field(repr=False)
    losses: Tensor = field(repr=False)  # (R, epochs): the mean over each epoch's samples, as they were seen
    second_moment: TensorDict = field(repr=False)  # the optimizer's mean squared gradient, unbiased; empty for SGD
    estimates: tuple[dict[str, Estimate], ...] = field(repr=False)  # one for each of `collect`
    how: str
    optimizer_state: dict[str, TensorDict] = field(
        default_factory=dict, repr=False
    )  # by torch's keys, if it was to be kept

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def sigma(self) -> TensorDict:
        """Sigma by the first of `collect`, (R, ...)."""
        return {name: estimate.sigma for name, estimate in self._first().items()}

    @property
    def dead(self) -> dict[str, Tensor | None]:
        """Where no gradient arrived, by the first of `collect`."""
        return {name: estimate.dead for name, estimate in self._first().items()}

    def _first(self) -> dict[str, Estimate]:
        if not self.estimates:
            raise ValueError("nothing was collected: call train_many(..., collect=PseudoBootstrap(last=200))")
        return self.estimates[0]

    @property
    def state(self) -> TensorDict:
        """Parameters and buffers: what `start=` takes to train on."""
        return {**self.params, **self.buffers}

    def rows(self, index: Sequence[int] | Tensor, seeds: Sequence[int] | None = None) -> "Result":
        """These replicas, in this order, which may repeat: what a next training starts from; `seeds` are new ones."""
        at = torch.as_tensor(index, dtype=torch.long)
        if bad := [r for r in at.tolist() if not -len(self) <= r < len(self)]:
            raise IndexError(f"row {bad[0]}: there are {len(self)} replicas")
        if seeds is not None and len(seeds) != len(at):
            raise ValueError(f"seeds: {len(seeds)} for {len(at)} replicas")
        return replace(
            self,
            seeds=tuple(self.seeds[r] for r in at.tolist()) if seeds is None else tuple(seeds),
            params=_rows(self.params, at),
            buffers=_rows(self.buffers, at),
            losses=self.losses[at],
            second_moment=_rows(self.second_moment, at),
            estimates=tuple({name: _estimate_rows(e, at) for name, e in table.items()} for table in self.estimates),
            optimizer_state={name: _rows(table, at) for name, table in self.optimizer_state.items()},
        )

    def accuracy(self, x: Tensor, y: Tensor, **options: Unpack[EvaluationOptions]) -> Tensor:
        """The share of samples that each replica gets right, (R,); options as of `evaluate`."""
        return evaluation.accuracies(self.make, self.state, x, y, **options)

    def evaluate(self, x: Tensor, y: Tensor, metric: Metric = correct, **options: Unpack[EvaluationOptions]) -> Tensor:
        """A metric of each replica and sample, (R, N); options as of `evaluate`."""
        return evaluation.evaluate(self.make, self.state, x, y, metric, **options)

    def module(self, replica: int) -> nn.Module:
        """One replica as an ordinary model."""
        seed = self.seeds[replica]
        model = copy.deepcopy(self.make) if isinstance(self.make, nn.Module) else build(self.make, seed)
        own = tensors(model)
        with torch.no_grad():
            for name, tensor in self.state.items():
                own[name].copy_(tensor[replica])
        return model


def joined(results: Sequence[Result]) -> Result:
    """Results of different replicas as one."""
    first = results[0]
    if len(results) == 1:
        return first
    sizes = [len(result) for result in results]
    return Result(
        make=first.make,
        seeds=tuple(seed for result in results for seed in result.seeds),
        params=_joined([result.params for result in results]),
        buffers=_joined([result.buffers for result in results]),
        losses=torch.cat([result.losses for result in results]),
        second_moment=carry.joined_tables([result.second_moment for result in results], sizes),
        estimates=tuple(_joined_estimates(each) for each in zip(*(r.estimates for r in results), strict=True)),
        how=first.how,
        optimizer_state=carry.joined([result.optimizer_state for result in results], sizes),
    )


def _rows(table: TensorDict, at: Tensor) -> TensorDict:
    return {name: tensor[at] for name, tensor in table.items()}


def _estimate_rows(estimate: Estimate, at: Tensor) -> Estimate:
    return Estimate(estimate.sigma[at], None if estimate.dead is None else estimate.dead[at])


def _joined(tables: Sequence[TensorDict]) -> TensorDict:
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def _joined_estimates(parts: Sequence[dict[str, Estimate]]) -> dict[str, Estimate]:
    return {name: _joined_estimate([part[name] for part in parts]) for name in parts[0]}


def _joined_estimate(rows: Sequence[Estimate]) -> Estimate:
    dead = [row.dead for row in rows if row.dead is not None]
    return Estimate(torch.cat([row.sigma for row in rows]), torch.cat(dead) if len(dead) == len(rows) else None)
